"""The records of an audit or a reproduction in one file, without what takes most room, to stand beside its tables.

python benchmarks/collect.py reproduction --out docs/results/reproduction/records.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from undelta.files import write_bytes

LONG = ("history", "curve")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    records = [json.loads(path.read_text()) for path in sorted(options.directory.glob("trials/*/record.json"))]
    records = [{key: value for key, value in one.items() if key not in LONG} for one in records]
    for record in records:
        record["scenario"]["data"] = Path(record["scenario"]["data"]).name
    records.sort(key=lambda one: (one["name"], one["attack"], one["seed"]))
    write_bytes(options.out, "\n".join(["[", ",\n".join(map(compact, records)), "]\n"]).encode())


def compact(record: dict[str, Any]) -> str:
    """One record, one line: numbers with the digits that matter."""
    return json.dumps(json.loads(json.dumps(record), parse_float=lambda text: float(f"{float(text):.6g}")))


if __name__ == "__main__":
    main()
