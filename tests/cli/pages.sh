# Every page that Mezzo writes forbids the network and foreign scripts, names nothing outside itself, and a browser shows it without a complaint.
# Seen to fail with: a policy that forbids the page's own style, a style from a URL, a page without a policy.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
while read -r file; do
    grep -q 'Content-Security-Policy\|http-equiv=\\"Content-Security-' "$file" || fail "$file writes a page without a policy"
done < <(grep -rlEi '<!doctype html' "$MEZZO_SOURCE"/{src,cli,tools,data,python})

command -v xz >/dev/null || exit 77
tar -xJf "$MEZZO_TESTS/audit/traces.tar.xz" || fail "the traces cannot be unpacked"
text 200 >text.txt
RUN=("${TINY[@]}" --tokenizer byte --data text.txt --steps 7 --precision fp32 --quiet)
run 0 train "${RUN[@]}" --out one --profile 3
run 0 train "${RUN[@]}" --out two --lr 0.01
run 0 report one two
run 0 report one two --compare --out both.html
run 1 doctor --trace clip_first_wrong --out audit.html
"$MEZZO" advise --data text.txt --layers 1 --heads 2 --d-model 32 --seq-len 16 --batch-size 4 --device cpu --threads 1 --precisions fp32,bf16 \
    --minutes 0.02 --out advice >"$OUT" 2>"$ERR"
pages=(one/report.html two/report.html both.html one/profile/index.html audit.html advice/advise.html)

for page in "${pages[@]}"; do
    last="a look at $page"
    [[ -s $page ]] || fail "no $page"
    policy=$(grep -oE 'http-equiv="Content-Security-Policy" content="[^"]*"' "$page")
    [[ $(wc -l <<<"$policy") -eq 1 && -n $policy ]] || fail "$page has no policy, or more than one"
    for part in "default-src 'none'" "base-uri 'none'" "form-action 'none'"; do
        [[ $policy == *"$part"* ]] || fail "the policy of $page lacks $part: $policy"
    done
    # Scripts and styles come by their hashes or stand in the page; nothing comes from an address.
    ! grep -qE "https?:|connect-src|script-src[^;]*'unsafe" <<<"$policy" || fail "the policy of $page lets too much in: $policy"
    ! grep -qE '<(script|img|link|iframe|object|embed)[^>]* (src|href|data)="?(https?:|//|file:)' "$page" || fail "$page asks for something else"
    ! grep -qE '@import|url\((.?)(https?:|//)' "$page" || fail "the style of $page asks for something else"
done

for name in chromium chromium-browser google-chrome; do
    browser=$(command -v "$name") && break
done
[[ -n ${browser:-} ]] || exit 0
for page in "${pages[@]}"; do
    last="$browser $page"
    timeout 100 "$browser" --headless --no-sandbox --disable-gpu --virtual-time-budget=10000 --enable-logging=stderr \
        --user-data-dir="$SCRATCH/profile" --dump-dom "file://$PWD/$page" >"$OUT" 2>"$ERR"
    grep -q '<body' "$OUT" || fail "the browser did not come to the end of $page"
    ! grep -E 'CONSOLE|Content Security Policy' "$ERR" || fail "the browser complains of $page"
done
