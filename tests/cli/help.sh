# Help, the version, and words that are not known.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

run 0 --help
shows "$OUT" train eval sample data explain bench "exit codes"
run 0 --version
[[ $(cat "$OUT") =~ ^mezzo\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "not a version"

for subcommand in train eval sample data explain bench analyze advise sweep lab verify; do
    run 0 "$subcommand" --help
    shows "$OUT" "usage: mezzo $subcommand" --json
    [[ ! -s $ERR ]] || fail "help wrote to stderr"
    run 0 "$subcommand" --json --help # wherever it stands
    shows "$OUT" "usage: mezzo $subcommand"
done
# At most 80 columns, everywhere; `mezzo help NAME` is `mezzo NAME --help`.
for subcommand in "" train eval sample data import export explain bench analyze advise sweep lab memory verify doctor report watch launch; do
    run 0 $subcommand --help
    long=$(LC_ALL=C.UTF-8 awk 'length($0) > 80' "$OUT")
    [[ -z $long ]] || fail "more than 80 columns in mezzo $subcommand --help: $long"
    cp "$OUT" help.txt
    run 0 help $subcommand
    cmp -s "$OUT" help.txt || fail "mezzo help $subcommand is not mezzo $subcommand --help"
done
run 0 eval --help
grep -q "^       mezzo eval PREDICTED" "$OUT" || fail "the second form of a usage does not begin a line"
refuse_help() { run 2 help tarin; shows "$ERR" '"tarin"' '"train"'; }
refuse_help
run 0 train --help
shows "$OUT" --optimizer.lr --lr --seq-len --precision --resume

# Alone it lists what there is, by what one wants to do; nothing was done.
run 2
shows "$ERR" "train a model" "find the precision that pays" "  doctor " "usage: mezzo SUBCOMMAND"
[[ ! -s $OUT ]] || fail "a result without a subcommand"
run 2 tarin
shows "$ERR" 'mezzo: there is no subcommand "tarin"' '"train"'
run 2 --nonsense
refuse 2 --batchsize --batch-size -- train --batchsize 3
refuse 2 --optimizer.lrr --optimizer.lr -- train --optimizer.lrr 3
refuse 2 --temprature --temperature -- sample runs/x --temprature 1
refuse 2 --formatt "mean --format?" -- data text.txt --formatt llmc
refuse 2 --aftr --after -- explain --aftr fuse
refuse 2 --best -- eval runs/x --bst
refuse 2 --xyzzyplugh "mezzo train --help" -- train --xyzzyplugh 3
refuse 2 --steps "needs a value" -- train --steps
refuse 2 --data "needs a value" -- train --data --steps 5
refuse 2 -s -- train -s 5
refuse 2 "from 0 to 9007199254740992, got" -- train --seed -1
refuse 2 extra -- train extra
refuse 2 "run folder" "[--csv FILE] or mezzo eval PREDICTED" -- eval
refuse 2 "run folder" -- sample
refuse 2 --json -- train --json=yes

# A result that does not reach its file is an error.
if [[ -e /dev/full ]]; then
    "$MEZZO" train --help >/dev/full 2>"$ERR"
    [[ $? -eq 3 ]] || fail "help into a full disk left with another code than 3"
    shows "$ERR" "standard output"
fi

# Options of the documents' commands are options of these subcommands.
declare -A help_of
while read -r subcommand rest; do
    if [[ $subcommand == launch && $rest == *" -- "* ]]; then
        read -r subcommand rest <<<"${rest#* -- }"
    fi
    [[ $subcommand != doctor ]] || rest=${rest%% -- *} # a program and its own options
    [[ $subcommand != help && $subcommand != SUBCOMMAND ]] || continue
    [[ -n ${help_of[$subcommand]:-} ]] || help_of[$subcommand]=$("$MEZZO" "$subcommand" --help) ||
        fail "a document has the subcommand $subcommand: $rest"
    for option in $(grep -oE -- '(^| )--[a-z0-9_.-]+' <<<"$rest"); do
        [[ $option == --autocast.* ]] || grep -qE -- "(^|[ ,])$option( |,|\$)" <<<"${help_of[$subcommand]}" ||
            fail "a document has mezzo $subcommand $option: $rest"
    done
done < <(LC_ALL=C grep -rhoE '(^    |\$ |`)mezzo [a-z]+ [^`|#]*' "$MEZZO_SOURCE/README.md" "$MEZZO_SOURCE/docs" --include='*.md' |
    sed -E 's/^[ $`]*mezzo //' | sort -u)

# What the guides give as Mezzo's word for another tool's, in the last column of a table, is an option of some subcommand.
for subcommand in $("$MEZZO" --help | sed -nE 's/^  ([a-z]+)  +.*/\1/p'); do
    "$MEZZO" "$subcommand" --help
done >everything
while read -r option; do
    grep -qE -- "(^|[ ,])(${option}|--${option#--no-})( |,|\$)" everything || fail "a guide has the option $option"
done < <(sed -nE 's/^\|.*\|([^|]*)\|$/\1/p' "$MEZZO_SOURCE"/docs/guides/from-*.md | grep -oE -- '--[a-z][a-z0-9_.-]*' | sort -u)

# docs/cli.md names every option that a subcommand has of its own.
for subcommand in train eval sample data explain bench analyze advise sweep lab verify; do
    run 0 "$subcommand" --help
    sed "/^## $subcommand\$/,/^## /!d" "$MEZZO_SOURCE/docs/cli.md" >section
    for option in $(sed -nE '/^options:/,/^$/s/^  (--[a-z-]+).*/\1/p' "$OUT"); do
        [[ $option == --help ]] || grep -qF -- "\`$option" section || fail "docs/cli.md does not tell of $subcommand $option"
    done
done
# A subcommand's own defaults are those that its help names and that it trains with.
run 0 verify --help
grep -A2 -e "--train.batch_size" "$OUT" | grep -q "\[64\]" || fail "verify's help has another batch than verify"
grep -A2 -e "--model.layers" "$OUT" | grep -q "\[4\]" || fail "verify's help has other layers than verify"
run 0 train --help
grep -A2 -e "--train.batch_size" "$OUT" | grep -q "\[12\]" || fail "train's help has verify's batch"
