# bash completion of mezzo, as `mezzo help --completion bash` prints it
_mezzo() {
    local IFS=$'\n' current=${COMP_WORDS[COMP_CWORD]} words
    words=$("${COMP_WORDS[0]/#\~/$HOME}" help --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1)
    if [[ $words == '*' ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    fi
}
complete -F _mezzo mezzo
