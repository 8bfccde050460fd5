# A run handed to the real SDKs of Weights & Biases (offline) and MLflow (a database on the disk), read back from what they stored.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 200 >text.txt
python=${MEZZO_PYTHON:-}
[[ -n $python ]] && "$python" -c 'import wandb, mlflow, sqlalchemy' 2>/dev/null || exit 77

run 0 train "${TINY[@]}" --data text.txt --steps 30 --log-every 1 --init-scale 1e10 --precision fp16 --out run --device cpu --threads 1
printf '{"speedup": 2.5, "memory_reduction_percent": null, "requirements_met": {"speedup": true, "accuracy": null}}\n' >verify.json

export WANDB_MODE=offline WANDB_SILENT=true MLFLOW_TRACKING_URI=sqlite:///$PWD/mlflow.db
for tool in wandb mlflow; do
    last="contrib/to_$tool.py"
    "$python" "$MEZZO_SOURCE/contrib/to_$tool.py" run --verify verify.json --live --idle 0 >"$OUT" 2>"$ERR" || fail "exit code $?"
    "$python" "$MEZZO_TESTS/cli/check_contrib.py" "$tool" "$PWD" run >"$OUT" 2>"$ERR" || fail "it stored something else"
done

printf 'nonsense\n' >>run/metrics.jsonl
! "$python" "$MEZZO_SOURCE/contrib/to_mlflow.py" run >"$OUT" 2>"$ERR" || fail "a line that is no record was taken"
shows "$ERR" "run/metrics.jsonl:" "not a record"
