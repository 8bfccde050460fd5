# The Python module, by pytest, over this build's command.
[[ -n $MEZZO_PYTHON ]] || exit 77
export PYTHONPATH=$MEZZO_SOURCE/python PYTHONDONTWRITEBYTECODE=1
exec "$MEZZO_PYTHON" -m pytest -q -p no:cacheprovider "$MEZZO_TESTS/python"
