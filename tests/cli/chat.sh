# A conversation with a model that learned one by heart: turns, commands, what does not fit, Ctrl-C, and that an export carries the template.
# Seen to fail with: the history not sent; the cached positions of another prompt taken; a stop that was not reset.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
for _ in {1..20}; do
    echo '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "Good bye."}]}' | tr -d '\n'
    echo
    echo '{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "So soon?"}]}'
    for name in Ann Bob; do echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$name\"}, {\"role\": \"assistant\", \"content\": \"Dear $name!\"}]}"; done
done >talk.jsonl
run 0 train --data talk.jsonl --tokenizer byte --layers 2 --heads 2 --d-model 64 --seq-len 192 --batch-size 8 --steps 200 --lr 3e-3 --warmup 10 --precision fp32 \
    --sample-every -1 --checkpoint-every 0 --eval-every 0 --device cpu --threads 1 --out talk --quiet
ask() { # CODE LINE… -- OPTION…
    local code=$1 lines=()
    shift
    while [[ $1 != -- ]]; do
        lines+=("$1")
        shift
    done
    last="mezzo chat talk ${*:2}"
    printf '%s\n' "${lines[@]}" | "$MEZZO" chat talk --temperature 0 --device cpu --threads 1 "${@:2}" >"$OUT" 2>"$ERR"
    [[ ${PIPESTATUS[1]} -eq $code ]] || fail "not exit code $code"
}
answers() { diff <(printf '%s\n' "$@") "$OUT" || fail "other answers"; }

ask 0 Hi Bye "/save talked.jsonl" /reset Hi "/system S" Bye "/system" Hi /exit Bye --
answers "Hello!" "Good bye." "Hello!" "So soon?" "Hello!"
[[ $(<talked.jsonl) == '{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello!"},{"role":"user","content":"Bye"},{"role":"assistant","content":"Good bye."}]}' ]] ||
    fail "saved: $(<talked.jsonl)"
ask 0 Ann /reset Bob /reset Ann --
answers "Dear Ann!" "Dear Bob!" "Dear Ann!"
ask 0 Bye /reset Bye -- --system S
answers "So soon?" "So soon?"
ask 0 "" Hi $'Bye\r' --
answers "Hello!" "Good bye."
# The conversation of the record and sample --chat have the same prompt.
run 0 sample talk --chat Hi --temperature 0 --device cpu --threads 1
answers "Hello!"
# The whole input as one message: what begins with a slash is no command.
printf 'Hi' | "$MEZZO" chat talk --whole --temperature 0 --device cpu --threads 1 >"$OUT" 2>"$ERR" || fail "--whole"
answers "Hello!"
printf '//Hi' | "$MEZZO" chat talk --whole --temperature 0 --tokens 1 --device cpu --threads 1 >"$OUT" 2>"$ERR" || fail "--whole with slashes"
whole=$(<"$OUT")
printf '///Hi\n/save slashes.jsonl\n' | "$MEZZO" chat talk --temperature 0 --tokens 1 --device cpu --threads 1 >"$OUT" 2>"$ERR" || fail "slashes"
answers "$whole"
shows slashes.jsonl '"//Hi"'
# Nothing of a message is cut off unseen.
for option in "" --whole; do
    printf 'Hi\0 and more\nBye\n' | "$MEZZO" chat talk $option --temperature 0 --device cpu --threads 1 >"$OUT" 2>"$ERR"
    [[ ${PIPESTATUS[1]} -eq 2 && ! -s $OUT ]] || fail "a NUL $option"
    shows "$ERR" "mezzo chat: the message has a NUL in it"
done
# What does not fit: one message is refused and not kept; of many the oldest are left out, and that is said.
ask 2 "$(printf 'x%.0s' {1..200})" --
shows "$ERR" "mezzo chat: the message takes 250 tokens with its template, and the model's context is 192 tokens"
ask 0 Hi Bye Hi Bye -- --tokens 20
shows "$ERR" "the context of 192 tokens is full: left out the oldest messages and their answers, 1 so far"
ask 0 Hi -- --tokens 3
shows "$ERR" "the answer is cut off"
answers Hel
ask 2 /what --
shows "$ERR" "there is no command /what"
ask 2 $'\xff' --
shows "$ERR" "not UTF-8"
ask 2 "/save" --
ask 3 "/save nowhere/x" --
ask 0 /help --
shows "$ERR" "/system TEXT"
refuse 2 "a run folder or a checkpoint is missing" -- chat
refuse 2 "--tokens" -- chat talk --tokens 0
run 0 export talk --out published
shows published/tokenizer_config.json chat_template "im_start"
shows published/generation_config.json stop_strings "<|im_end|>" # bytes have no token for it

# On a terminal: Ctrl-C stops the answer, and the conversation goes on; twice without a message leaves.
command -v python3 >/dev/null || exit 0
cat >terminal.py <<'END'
import os, pty, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], "chat", "talk", "--temperature", "0", "--device", "cpu", "--threads", "1"])
seen = b""
def until(text, count=1):
    global seen
    end = time.monotonic() + 120
    while seen.count(text) < count:
        assert time.monotonic() < end, seen
        seen += os.read(fd, 4096)
until(b"> ")
os.write(fd, b"Hi\n")
until(b"Hello!")
until(b"> ", 2)
os.write(fd, b"\x03")
until(b"again")
os.write(fd, b"Bye\n")
until(b"Good bye.")
until(b"> ", 4)
os.write(fd, b"\x03")
until(b"again", 2)
os.write(fd, b"\x03")
try:
    while os.read(fd, 4096):
        pass
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
timeout 200 python3 terminal.py "$MEZZO"
code=$?
[[ $code -eq 130 ]] || fail "the terminal: exit code $code"

# From a pipe: a signal that comes after half a line was read ends it too.
cat >pipe.py <<'END'
import array, fcntl, os, signal, subprocess, sys, termios, time
reads, writes = os.pipe()
os.write(writes, b"half a li")
chat = subprocess.Popen([sys.argv[1], "chat", "talk", "--device", "cpu", "--threads", "1"], stdin=reads)
left = array.array("i", [1])
while left[0] > 0 and chat.poll() is None:
    fcntl.ioctl(reads, termios.FIONREAD, left)
    time.sleep(0.05)
chat.send_signal(signal.SIGTERM)
try:
    sys.exit(chat.wait(timeout=60))
except subprocess.TimeoutExpired:
    chat.kill()
    raise
END
timeout 200 python3 pipe.py "$MEZZO"
code=$?
[[ $code -eq 130 ]] || fail "half a line in a pipe: exit code $code"
