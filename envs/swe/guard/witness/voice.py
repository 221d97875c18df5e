# A part of the witness: see __init__.py.
# mypy: ignore-errors
def make_voice(secret, descriptor, own_codes):
    """How the witness speaks: (say, quietly, hear, quiet). `hear` is the audit hook's alone; `quiet`: threads in which
    the witness itself is at work."""
    import os
    import sys
    from _thread import get_ident

    getframe = sys._getframe
    quiet = set()

    # Everybody who holds `say` can call it; what it says counts only where it was called as the witness calls it. The
    # secret, the descriptor and the key of the runner that is at work are known to the audit hook alone, to which no
    # object of Python refers: code that finds the secret in some environment cannot end what began with a key.
    def speaker(secret, descriptor):
        write, random = os.write, os.urandom
        ways = {"began": ("say", "begin", "quietly", "watched"), "end": ("say", "end", "finish", "quietly", "watched")}
        key = [""]

        def tell(kind, facts, frame):
            for name in ways.get(kind, ("say",)):
                if frame is None or frame.f_code.co_name != name or id(frame.f_code) not in own_codes:
                    return
                frame = frame.f_back
            if kind == "began":
                key[0] = "".join("%02x" % byte for byte in random(8))
            text = ascii([kind, facts, key[0]]).encode()
            for at in range(0, len(text), 3000):
                last = b"." if at + 3000 >= len(text) else b"+"
                write(descriptor, b"\x1e" + secret + last + text[at : at + 3000] + b"\x1f")

        return tell

    tell = speaker(secret, descriptor)
    audit = getattr(sys, "audit", None)

    def say(kind, facts):
        if audit is not None:
            audit("sao.say", kind, facts)
        else:  # before Python 3.8
            without[0](kind, facts, getframe())

    without = [] if audit is not None else [tell]

    def quietly(work, *words):
        me = get_ident()
        fresh = me not in quiet
        quiet.add(me)
        try:
            return work(*words)
        except Exception as error:  # what cannot be seen is said: a broken run would be a wrong verdict
            say("broken", repr(error)[:500])
        finally:
            if fresh:
                quiet.discard(me)

    def hear(words, frame):
        me = get_ident()
        fresh = me not in quiet
        quiet.add(me)
        try:
            tell(words[0], words[1], frame)
        finally:
            if fresh:
                quiet.discard(me)

    return say, quietly, hear, quiet
