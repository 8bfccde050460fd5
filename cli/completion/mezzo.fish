# fish completion of mezzo, as `mezzo help --completion fish` prints it
function __mezzo_words
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($words[1] help --words $words[2..] "$current" 2>/dev/null)
    if test "$lines" = '*'
        __fish_complete_path "$current"
    else
        printf '%s\n' $lines
    end
end
complete -c mezzo -f -a '(__mezzo_words)'
