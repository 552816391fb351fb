#!/usr/bin/env bash
# pyarrow 26.0.1: a column that a Parquet file does not have is left out in silence by ParquetFile, and an error
# of read_table.
#
# Of a file whose only column is `body`, ParquetFile(...).iter_batches(columns=["text"]) gives batches with all
# rows and no column, and ParquetFile(...).read(columns=["text"]) a table of shape (2, 0). read_table of the same
# file and names raises ArrowInvalid, "No match for FieldRef.Name(text)". A reader that streams a data set must
# look at the schema itself, or a misspelt name trains on nothing.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import pyarrow as pa
import pyarrow.parquet as pq

pq.write_table(pa.table({"body": ["a", "b"]}), "x.parquet")
file = pq.ParquetFile("x.parquet")
batches = [(b.num_rows, b.num_columns) for b in file.iter_batches(columns=["text"])]
table = file.read(columns=["text"]).shape
try:
    pq.read_table("x.parquet", columns=["text"])
    error = "none"
except pa.ArrowInvalid as raised:
    error = str(raised).splitlines()[0]
print(batches, table, error)
expected = "No match for FieldRef.Name(text)"
raise SystemExit(0 if (batches, table) == ([(2, 0)], (2, 0)) and error.startswith(expected) else 1)
PYTHON
