# A report of a device: a page and its data, each kernel and model in it, nothing about who made it; what cannot be written.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

refuse 2 --report --config -- doctor --report card.html --config train.yaml
run 0 doctor --report card.html
shows "$OUT" "report      card.html" "beside the ref device" "0 failed"
shows card.html "<h2>models</h2>" "<h2>kernels</h2>" "<h2>rates</h2>" "radio_unet-tiny" "attention_bwd" "fp32" "Content-Security-Policy"
! grep -qF -- "$HOME" card.html || fail "the page names a folder of its author"
! grep -q 'class="wrong"' card.html || fail "a row is marked"
run 3 doctor --report missing/card.html
shows "$ERR" "missing/card.html"
