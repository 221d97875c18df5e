# A part of the witness: see __init__.py.
# mypy: ignore-errors
def make_unittest(depth, Tests, stop, begin, end, quietly):
    """Follows unittest's runner. `depth`: runners at work, one in the other."""
    import os
    import sys

    read_link = os.path.realpath
    own = ("_testMethodName", "_outcome", "_testMethodDoc", "_cleanups", "_subtest", "longMessage", "maxDiff",
           "_type_equality_funcs", "failureException", "_asyncioRunner", "_asyncioTestContext")  # fmt: skip

    def unittest_runner(module):
        case = sys.modules["unittest.case"].TestCase
        run = module.TextTestRunner.run

        def follow(result, tests):
            success, skip, xfail = result.addSuccess, result.addSkip, result.addExpectedFailure

            def note(test, outcome):
                name = test.id()
                tests.end(name, outcome)
                strange = [key for key in vars(test) if hasattr(case, key) and key not in own]
                if strange:
                    tests.strange.append(name + ": " + strange[0] + " was put on it")
                function = getattr(type(test), getattr(test, "_testMethodName", ""), None)
                called = str(getattr(test, "_testMethodName", ""))
                tests.look(name, called, function, type(test), sys.modules.get(type(test).__module__))

            def add_success(test):
                quietly(note, test, "passed")
                return success(test)

            def add_skip(test, reason):
                quietly(note, test, "skipped")
                trace, file = sys.exc_info()[2], ""
                while trace is not None:
                    name = trace.tb_frame.f_code.co_filename
                    file = name if "/unittest/" not in name else file
                    trace = trace.tb_next
                if file:
                    tests.put(read_link(file), test.id())
                return skip(test, reason)

            def add_xfail(test, error):
                quietly(note, test, "xfailed")
                return xfail(test, error)

            result.addSuccess, result.addSkip, result.addExpectedFailure = add_success, add_skip, add_xfail
            return result

        def ask(result):
            """Do calls that fail still count as failed? One for each way of failing."""
            import io

            class Probe(case):
                def by_assert(self):
                    assert not self.id()

                def by_equal(self):
                    self.assertEqual(1, 2)

                def by_true(self):
                    self.assertTrue(0)

                def by_raises(self):
                    with self.assertRaises(KeyError):
                        pass

                def by_error(self):
                    raise KeyError("probe")

            names = ("by_assert", "by_equal", "by_true", "by_raises", "by_error")
            asked = type(result)(module._WritelnDecorator(io.StringIO()), True, 0)
            for name in names:
                Probe(name).run(asked)
            return len(asked.failures) + len(asked.errors) == len(names)

        def watched(self, test):
            depth[0] += 1
            if depth[0] > 1:
                try:
                    return run(self, test)
                finally:
                    depth[0] -= 1
            tests = Tests()
            make = self._makeResult
            self._makeResult = lambda: follow(make(), tests)
            stop()
            module.TextTestRunner.run = run
            quietly(begin, "unittest")
            try:
                result = run(self, test)
            finally:
                module.TextTestRunner.run = watched
                depth[0] -= 1

            def finish():
                for each, _ in result.failures + result.errors:
                    tests.end(each.id(), "failed")
                for each in result.unexpectedSuccesses:
                    tests.end(each.id(), "xpassed")
                module.TextTestRunner.run = watched
                try:
                    honest = ask(result)
                except Exception:  # a result class of the project's own wants other words
                    honest = None
                end(tests, {"runner": "unittest", "ran": result.testsRun, "probe": honest})

            quietly(finish)
            return result

        module.TextTestRunner.run = watched

    return unittest_runner
