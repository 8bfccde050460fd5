#compdef mezzo
# zsh completion of mezzo, as `mezzo help --completion zsh` prints it
_mezzo() {
    local -a lines
    lines=("${(@f)$(${~words[1]} help --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ $lines == '*' ]]; then
        _files
    else
        lines=("${(@)${(@)lines//:/\\:}/$'\t'/:}")
        _describe 'word of mezzo' lines
    fi
}
if [[ $funcstack[1] == _mezzo ]]; then
    _mezzo "$@"
else
    compdef _mezzo mezzo
fi
