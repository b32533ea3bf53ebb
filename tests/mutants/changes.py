"""Every small change of a source file that a test ought to notice."""

import ast
import re

from mutants.change import Change

_OPPOSITE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_OTHER_OPERATOR: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
_OTHER_FUNCTION = {"any": "all", "all": "any", "min": "max", "max": "min"}
_LOGGING = re.compile(r"\b_?log(ger)?\.")


def changes(file: str, source: str) -> list[Change]:
    """Return the changes of *source*, which is the text of *file*.

    Conditions become True, False or their opposite, each part of an `and` or `or` goes, a bound
    moves by one, a step is left out, a value that is returned becomes None. Texts, log lines,
    annotations and documentation are left alone: no decision depends on them.
    """
    finder = _Finder(file, source)
    finder.visit(ast.parse(source))
    return list({(*change.name, change.start): change for change in finder.found}.values())


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, source: str) -> None:
        self.found: list[Change] = []
        self._file = file
        self._data = source.encode()
        starts = [0]
        for line in self._data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts = starts
        self._within: list[str] = []

    # What is passed through.

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._within.append(node.name)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._within.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._within.append(node.name)
        for statement in node.body:
            if not isinstance(statement, ast.AnnAssign | ast.Assign):
                self.visit(statement)
        self._within.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave texts alone."""

    # What is decided.

    def visit_If(self, node: ast.If) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._replace(node.test, "False")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        neutral = "True" if isinstance(node.op, ast.And) else "False"
        for value in node.values:
            self._replace(value, neutral)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace(node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left: ast.expr = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            was, becomes = _OPPOSITE[type(operator)]
            self._between(left, right, was, becomes)
            left = right
        for number in (node.left, *node.comparators):
            if isinstance(number, ast.Constant) and type(number.value) is int:
                self._replace(number, str(number.value + 1))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = _OTHER_OPERATOR.get(type(node.op))
        texts = (node.left, node.right)
        if other is not None and not any(_is_text(each) for each in texts):
            self._between(node.left, node.right, *other)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _OTHER_FUNCTION:
            self._replace(node.func, _OTHER_FUNCTION[node.func.id])
        if not _LOGGING.search(self._text(node.func)):
            self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        index = node.slice
        if isinstance(index, ast.Constant) and type(index.value) is int:
            self._replace(index, str(index.value + 1))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))

    # What is done.

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # documentation
        if not _LOGGING.search(self._text(node.value)):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        value = node.value
        if value is not None and not isinstance(value, ast.Constant):
            self._replace(value, "None")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "pass")

    def visit_Delete(self, node: ast.Delete) -> None:
        self._replace(node, "pass")

    def _condition(self, test: ast.expr) -> None:
        for value in ("True", "False"):
            self._replace(test, value)

    # How it is written down.

    def _replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        self._add(self._start(node), self._end(node), new)

    def _between(self, left: ast.expr, right: ast.expr, was: str, becomes: str) -> None:
        start, end = self._end(left), self._start(right)
        pattern = r"\s+".join(re.escape(word) for word in was.split())
        edge = r"\b" if was[0].isalpha() else ""
        found = re.search(f"{edge}{pattern}{edge}", self._data[start:end].decode())
        if found is not None:
            self._add(start + found.start(), start + found.end(), becomes)

    def _add(self, start: int, end: int, new: str) -> None:
        first = self._data.rfind(b"\n", 0, start) + 1
        last = self._data.find(b"\n", end)
        last = len(self._data) if last < 0 else last
        was = _on_one_line(self._data[first:last])
        becomes = _on_one_line(self._data[first:start] + new.encode() + self._data[end:last])
        if was != becomes:
            self.found.append(
                Change(
                    file=self._file,
                    function=".".join(self._within),
                    line=self._data.count(b"\n", 0, start) + 1,
                    start=start,
                    end=end,
                    new=new,
                    was=was,
                    becomes=becomes,
                )
            )

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        if node.end_lineno is None or node.end_col_offset is None:
            raise ValueError(f"{self._file}: a node without an end")
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._data[self._start(node) : self._end(node)].decode()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _on_one_line(data: bytes) -> str:
    return " ".join(data.decode().split())
