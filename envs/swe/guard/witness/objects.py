# A part of the witness: see __init__.py.
# mypy: ignore-errors
def make_objects():
    """The framework's objects, as they were when they were made: (keep, changed, source_of)."""
    from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

    kept = []  # (owner, its names before)
    plain = (FunctionType, BuiltinFunctionType, type, staticmethod, classmethod, property)
    passing = {"__doc__", "__dict__", "__weakref__", "__annotations__", "__abstractmethods__", "_abc_impl",
               "__slotnames__", "__firstlineno__", "__static_attributes__", "__annotations_cache__"}  # fmt: skip

    def inner(value):
        """What of a function can be exchanged while it stays the same object."""
        value = getattr(value, "__func__", value) if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(value, property):
            return value.fget
        if isinstance(value, FunctionType):
            return value.__code__, value.__defaults__, value.__kwdefaults__
        return None

    def faces(owner):
        strict = getattr(owner, "__module__", "").split(".")[0] == "unittest"
        return {
            name: (value, inner(value))
            for name, value in list(vars(owner).items())
            if name not in passing and (isinstance(value, plain) or (strict and isinstance(owner, type)))
        }

    def keep(module):
        kept.append((module, faces(module)))
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                kept.append((value, dict(faces(value), __bases__=(value.__bases__, None))))

    def same(one, other):
        if isinstance(one, tuple) and isinstance(other, tuple):
            return len(one) == len(other) and all(a is b for a, b in zip(one, other))
        return one is other

    def changed():
        found = []
        for owner, before in kept:
            now = vars(owner)
            label = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__ + "." + owner.__qualname__
            for name, (value, details) in before.items():
                other = owner.__bases__ if name == "__bases__" else now.get(name)
                if name == "__bases__" and other == value:
                    continue
                if other is not value or not same(details, inner(other)):
                    found.append([label + "." + name, source_of(other)])
            if isinstance(owner, type):
                for name in set(now) - set(before) - passing:
                    if isinstance(now[name], FunctionType) or (isinstance(now[name], plain) and hasattr(object, name)):
                        found.append([label + "." + name, source_of(now[name])])
        return found[:20]

    def source_of(value):
        value = getattr(value, "__func__", value)
        value = value.fget if isinstance(value, property) else value
        code = getattr(value, "__code__", None)
        return code.co_filename if isinstance(code, CodeType) else ""

    return keep, changed, source_of
