"""What expressions of constants make (`"py" + "test"`, `bytes.fromhex(...)`, reversed, joined); nothing is run."""

from __future__ import annotations

import ast
import base64
import binascii
import codecs


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return dotted(node.func) if isinstance(node, ast.Call) else ""


_UNKNOWN = object()


def fold(node: ast.AST) -> object:
    """The value of an expression of constants; _UNKNOWN where it is none."""
    try:
        return _value(node)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, binascii.Error):
        return _UNKNOWN


_DECODERS = {"fromhex", "unhexlify", "b64decode", "b32decode", "b85decode", "a85decode"}


def _value(node: ast.AST) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _value(node.left), _value(node.right)
        if isinstance(left, str | bytes) and type(left) is type(right):
            return left + right  # type: ignore[operator]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(left := _value(node.left), str):
        right = _value(node.right)
        return left % right
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(each) for each in node.elts)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        ends = (node.slice.lower, node.slice.upper, node.slice.step)
        parts = [None if each is None else _number(each) for each in ends]
        if isinstance(text := _value(node.value), str | bytes):
            return text[slice(*parts)]
    if isinstance(node, ast.Call):
        return _called(node)
    raise ValueError


def _number(node: ast.AST) -> int:
    value = ast.literal_eval(node) if isinstance(node, ast.expr) else None
    if not isinstance(value, int):
        raise ValueError
    return value


def _called(node: ast.Call) -> object:
    name = dotted(node.func).rpartition(".")[2]
    words = [_value(each) for each in node.args]
    owner = None
    if isinstance(node.func, ast.Attribute) and name not in _DECODERS and not isinstance(node.func.value, ast.Name):
        owner = _value(node.func.value)
    if name == "chr" and len(words) == 1 and isinstance(words[0], int):
        return chr(words[0])
    if name in ("bytes", "bytearray") and len(words) == 1 and isinstance(words[0], tuple):
        return bytes(words[0])
    if name in _DECODERS and len(words) == 1 and isinstance(words[0], str | bytes):
        raw = words[0] if isinstance(words[0], bytes) else words[0].encode()
        if name in ("fromhex", "unhexlify"):
            return bytes.fromhex(raw.decode())
        return getattr(base64, name)(raw)
    if isinstance(owner, str | bytes):
        if name in ("decode", "encode") and not words:
            return owner.decode() if isinstance(owner, bytes) else owner.encode()
        if name == "join" and len(words) == 1 and isinstance(words[0], tuple):
            return owner.join(words[0])
        if name in ("replace", "lower", "upper", "strip", "lstrip", "rstrip", "format", "swapcase", "removeprefix"):
            return getattr(owner, name)(*words)
    if name == "decode" and len(words) == 2 and isinstance(words[0], str):
        return codecs.getdecoder(str(words[1]))(words[0])[0]  # type: ignore[arg-type]
    if name in ("decompress", "loads") and len(words) == 1 and isinstance(words[0], bytes):
        return "exec"
    raise ValueError
