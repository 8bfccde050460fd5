# Man pages and shell completion: every option of --help is in both; bash completes as a person would see it.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

subcommands=$("$MEZZO" --help | sed -nE 's/^  ([a-z]+)  +.*/\1/p')
for shell in bash zsh fish; do
    run 0 help --completion $shell
    cp "$OUT" completion.$shell
    # A shell that is not here cannot be asked.
    ! command -v $shell >/dev/null || $shell -n completion.$shell || fail "$shell does not take its completion"
done
for subcommand in $subcommands; do
    run 0 help --man "$subcommand"
    cp "$OUT" page
    [[ $(head -n 1 page) == ".TH \"MEZZO\\-${subcommand^^}\" 1 "* ]] || fail "not the head of a man page"
    if command -v groff >/dev/null; then
        warnings=$(groff -man -ww -z -Tutf8 -K utf8 page 2>&1)
        [[ -z $warnings ]] || fail "groff: $warnings"
    fi
    run 0 "$subcommand" --help
    for option in $(sed -nE 's/^  --([a-z0-9_.-]+).*/\1/p' "$OUT"); do
        grep -qF -- "\\fB\\-\\-${option//-/\\-}" page || fail "mezzo-$subcommand(1) does not tell of --$option"
    done
    "$MEZZO" help --words "$subcommand" -- >words
    for option in $(sed -nE 's/^  --([a-z][a-z-]*)( .*)?$/\1/p' "$OUT"); do
        grep -q -- "^--$option"$'\t' words || fail "$subcommand --$option is not completed"
    done
done
run 0 help --man
for subcommand in $subcommands; do
    shows "$OUT" "mezzo\\-$subcommand (1)"
done
run 2 help --completion tcsh
shows "$ERR" "bash, zsh or fish" '"tcsh"'
run 2 help --completion
run 2 help --man tarin
shows "$ERR" '"train"'

# What a shell offers for a line; the last word is the one being typed.
offers() {
    bash --norc -c '. ./completion.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _mezzo; printf "%s\n" "${COMPREPLY[@]}"' - \
        "$MEZZO" "${@:2}"
}
fish_offers() {
    PATH=${MEZZO%/*}:$PATH fish --no-config -c "source completion.fish; complete -C '$*'" | cut -f 1
}
# Files are offered where an option or key takes them and for operands, and nowhere else.
while read -r subcommand option files; do
    [[ $("$MEZZO" help --words "$subcommand" "--$option" "" | grep -cx '\*') == "$files" ]] ||
        fail "$subcommand --$option: other files than expected"
done <<'OPTIONS'
train data 1
train model 1
train init 1
train steps 0
train loss 0
train quiet 1
eval truth 1
eval iters 0
sample data 1
import adapter 1
OPTIONS
touch text.txt
while read -r line; do
    expected=${line##* = }
    typed=${line% = *}
    # shellcheck disable=SC2086 # the words of a line
    [[ $(offers $typed) == "$expected" ]] || fail "bash: $typed: $(offers $typed)"
    ! command -v fish >/dev/null || [[ $(fish_offers "$typed") == "$expected" ]] ||
        fail "fish: $typed: $(fish_offers "$typed")"
done <<'LINES'
mezzo tr = train
mezzo train --prec = --precision
mezzo train --precision bf = bf16
mezzo train --data te = text.txt
mezzo sweep --d-m = --d-models
mezzo help wat = watch
mezzo help --man tr = train
mezzo help --ma = --man
mezzo explain --autocast = --autocast.
LINES
