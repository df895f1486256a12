"""Writes austen-excerpt.txt from Debian's r-cran-janeaustenr (see README.md); needs PyPI rdata==1.1.0.

Usage: python make_excerpt.py PACKAGE_ROOT OUTPUT, PACKAGE_ROOT being where the package was unpacked.
"""

import gzip
import sys
import zlib
from pathlib import Path

from rdata import conversion, parser

NOVEL = "prideprejudice"
LINES = 363  # the first at the end of a paragraph with more than 4,200 tokens: a margin over 4,096

database = Path(sys.argv[1]) / "usr/lib/R/site-library/janeaustenr/data/Rdata"
# R's lazy-load database: a compressed index of (offset, length) into a file of compressed objects.
index = conversion.convert(parser.parse_data(gzip.decompress(database.with_suffix(".rdx").read_bytes())))
offset, length = map(int, index["variables"][NOVEL])
stored = database.with_suffix(".rdb").read_bytes()[offset : offset + length]
# Four bytes give the object's size, then follows a zlib stream.
lines = conversion.convert(parser.parse_data(zlib.decompress(stored[4:])))
with open(sys.argv[2], "x", encoding="utf-8", newline="\n") as file:
    file.writelines(f"{line}\n" for line in lines[:LINES])
