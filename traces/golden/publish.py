"""Write demo.json, the published digests, from a demo that was run in the folder given: publish.py demo"""

import sys
from pathlib import Path

import msgspec

from loadshape.demo import publish

target = Path(__file__).with_name("demo.json")
target.write_bytes(msgspec.json.format(msgspec.json.encode(publish(Path(sys.argv[1])))) + b"\n")
print(f"wrote {target}")
