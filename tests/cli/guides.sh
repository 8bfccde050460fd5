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
    for option in $(sed -nE 's/^  --([a-z][a-z-]*)( .*)?$/\1/p' "$OUT"); do
        for shell in bash zsh fish; do
            grep -qF -- "$option" completion.$shell || fail "$shell does not complete $subcommand --$option"
        done
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

# What bash offers for a line; the last word is the one being typed.
offers() {
    bash --norc -c '. ./completion.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _mezzo; printf "%s\n" "${COMPREPLY[@]}"' - "$@"
}
# zsh and fish offer files where an option or key takes them, and nowhere else.
while read -r subcommand option files; do
    fish=$(grep -F "from $subcommand' -l $option " completion.fish)
    zsh=$(sed -n "/^    $subcommand)/,/;;/p" completion.zsh | grep -F -- "'--$option=[")
    [[ -n $fish && -n $zsh ]] || fail "$subcommand --$option is not completed"
    [[ $(grep -c -- " -r -F " <<<"$fish") == "$files" && $(grep -c ":_files'" <<<"$zsh") == "$files" ]] ||
        fail "$subcommand --$option: other files than expected: $fish $zsh"
done <<'OPTIONS'
train data 1
train model 1
train init 1
train steps 0
train loss 0
eval truth 1
eval iters 0
sample data 1
import adapter 1
OPTIONS
touch text.txt
[[ $(offers mezzo tr) == train ]] || fail "bash: mezzo tr"
[[ $(offers mezzo train --prec) == --precision ]] || fail "bash: mezzo train --prec"
[[ $(offers mezzo train --precision bf) == bf16 ]] || fail "bash: mezzo train --precision bf"
[[ $(offers mezzo train --data te) == text.txt ]] || fail "bash: mezzo train --data te"
[[ $(offers mezzo sweep --d-m) == --d-models ]] || fail "bash: mezzo sweep --d-m"
[[ $(offers mezzo help wat) == watch ]] || fail "bash: mezzo help wat"
[[ $(offers mezzo help --man tr) == train ]] || fail "bash: mezzo help --man tr"
[[ $(offers mezzo help --ma) == --man ]] || fail "bash: mezzo help --ma"
[[ $(offers mezzo explain --autocast) == --autocast. ]] || fail "bash: mezzo explain --autocast"
