"""Print modules and lines per room at some revisions, as a table: `python tests/sizes.py REVISION...`.

Code is every line but blank ones, comments, docstrings and imports. Generated code is left out.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

_ROOT = "daemon/holdfast"
_LONGEST, _SHORTEST = 600, 25
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Size(NamedTuple):
    """How much there is of some modules."""

    modules: int = 0
    lines: int = 0
    code: int = 0

    def plus(self, other: "Size") -> "Size":
        """Return both together."""
        return Size(*(one + two for one, two in zip(self, other, strict=True)))


def size_of(source: str) -> Size:
    """Return the size of one module."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        docstring = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return Size(1, source.count("\n"), len(code - left_out))


def _modules(revision: str) -> Iterator[tuple[str, Size]]:
    """Yield the path within the package, and the size, of each module that people write."""
    listed = _git("ls-tree", "-r", "--name-only", revision, f"{_ROOT}/")
    for path in listed.splitlines():
        name = path.removeprefix(f"{_ROOT}/")
        if name.endswith(".py") and not name.startswith("_pb/"):
            yield name, size_of(_git("show", f"{revision}:{path}"))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def main(revisions: list[str]) -> int:
    """Print the table, then what is long or short in the last revision."""
    every = [dict(_modules(revision)) for revision in revisions]
    rooms: dict[str, list[Size]] = {}
    for column, modules in enumerate(every):
        for name, size in modules.items():
            for room in (name.partition("/")[0], "all"):
                sizes = rooms.setdefault(room, [Size()] * len(revisions))
                sizes[column] = sizes[column].plus(size)
    print("| room |", " | ".join(f"{each}: modules | lines | code" for each in revisions), "|")
    print("|---|", "---:|" * 3 * len(revisions), sep="")
    for room, sizes in sorted(rooms.items(), key=lambda item: -max(each.code for each in item[1])):
        print(f"| {room} |", " | ".join(f"{n:,}" for size in sizes for n in size), "|")
    last = every[-1]
    long = sorted(name for name, size in last.items() if size.lines > _LONGEST)
    short = sorted(
        name
        for name, size in last.items()
        if size.lines < _SHORTEST and not name.endswith("__init__.py")
    )
    print(f"\nOver {_LONGEST} lines: {', '.join(long) or 'none'}.")
    print(f"Under {_SHORTEST} lines: {', '.join(short) or 'none'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["HEAD"]))
