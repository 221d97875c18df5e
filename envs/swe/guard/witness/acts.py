# A part of the witness: see __init__.py.
# mypy: ignore-errors
def make_acts(root, judged, say, hear, quiet):
    """What code of the repository does that honest code hardly ever does, said before it happens: (hook, find_inodes,
    ran, own)."""
    import os
    import sys
    from _thread import get_ident
    from types import CodeType

    getframe = sys._getframe
    frameworks = ("unittest", "_pytest", "pytest", "pluggy", "doctest")
    told = set()
    frames = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")
    whoever = {"gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys.settrace", "sys.setprofile", "os.fork",
               "os.forkpty", "os.exec", "os.kill", "os.killpg", "sys.addaudithook", "sys._current_frames",
               "ctypes.dlopen", "code.__new__", "signal.pthread_kill", "sys.unraisablehook"}  # fmt: skip

    def place(frame, far):
        """The innermost line of the repository; `far`: whatever lies between."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(root):
                return name[len(root) :], frame.f_lineno
            if not name.startswith(("/", "<frozen")):
                if not name.startswith("<"):
                    return name, frame.f_lineno
            elif not far and not name.endswith("/inspect.py"):
                return None
            frame = frame.f_back
        return None

    runners = {"timeit.py", "code.py", "codeop.py", "cProfile.py", "profile.py", "bdb.py", "pdb.py", "runpy.py",
               "trace.py", "doctest.py"}  # fmt: skip
    ran = set()  # files whose code was executed
    own = [] if hasattr(sys, "addaudithook") else [""]  # those of the repository, in order; before Python 3.8 unknown

    inodes, names, stat = set(), {path.rpartition("/")[2] for path in judged}, os.stat
    try:
        proc = stat("/proc").st_dev
    except OSError:
        proc = None

    def find_inodes():
        for path in judged:
            try:
                seen = stat(root + path)
                inodes.add((seen.st_dev, seen.st_ino))
            except OSError:
                pass

    def kind_of(path):
        """What stands there, whatever it is called: links, other spellings and folders make no difference."""
        path = os.fsdecode(path)
        try:
            seen = stat(path)
        except (OSError, ValueError):
            seen = None
        if seen is not None and seen.st_dev == proc:
            return "/proc/"
        if seen is not None and (seen.st_dev, seen.st_ino) in inodes:
            return "judged"
        if seen is None and "/" not in path and path in names:  # below a folder that is given by its descriptor
            return "judged"
        whole = path if path.startswith("/") else os.path.join(os.getcwd(), path)
        whole = os.path.normpath(whole) if "/." in whole or "//" in whole else whole
        return "/proc/" if whole.startswith("/proc/") else "/tmp/." if whole.startswith("/tmp/.driver-") else ""

    def hook(event, words):
        if event == "sao.say":
            hear(words, getframe().f_back)
            return
        if event == "exec":
            name = words[0].co_filename if type(words[0]) is CodeType else ""
            ran.add(name)
            if name.startswith(root) or not name.startswith(("/", "<")):
                own.append(name)
            # Code of a module's own file is run by imports; all other is run by somebody who asked for it.
            me = get_ident()
            if me in quiet:
                return
            quiet.add(me)
            by = getframe().f_back  # none where the interpreter itself runs what -c was given
            by = "" if by is None else by.f_code.co_filename
            quiet.discard(me)
            if name.startswith("<") and by.rpartition("/")[2] in runners:
                event = "run text by " + by.rpartition("/")[2]
            elif name.startswith(root) and (not name.endswith((".py", ".pyw")) or not os.path.isfile(name)):
                event = "run code that is in no file of Python"
            else:
                return
        elif event == "open":
            path = words[0]
            if not isinstance(path, (str, bytes)):
                return
            try:
                kind = kind_of(path)
            except OSError:  # its folder is gone
                return
            ends = (b".py", b".pyc", b".pth", b".so") if isinstance(path, bytes) else (".py", ".pyc", ".pth", ".so")
            if kind in ("/proc/", "/tmp/."):
                event = "open " + kind
            elif words[2] is not None and words[2] & 3 and path.endswith(ends):
                event = "write code"
            elif kind:
                event = "open a judged file"
            else:
                return
        elif event == "sys._getframe":
            pass
        elif event == "object.__setattr__" or event == "object.__getattr__":
            if words[1] not in frames and (words[1] != "__code__" or event != "object.__setattr__"):
                return
            event = event + " " + words[1]
        elif event == "pickle.find_class":
            if words[0].partition(".")[0] not in frameworks and words[1] not in ("setattr", "delattr", "exec", "eval"):
                return
        elif event not in whoever:
            return
        me = get_ident()
        if me in quiet:
            return
        quiet.add(me)
        try:
            near = event == "sys._getframe" or event.rpartition(" ")[2] in frames
            found = place(getframe().f_back, not near)
            if found is not None and len(told) < 200 and (event, found) not in told:
                told.add((event, found))
                say("act", [event, found[0], found[1]])
        finally:
            quiet.discard(me)

    return hook, find_inodes, ran, own
