"""Our sender (agent/engines/vllm/inside) in a process where the wire is replaced. SAO_TEST_INSIDE: its folder."""

import os
import pathlib
import sys

sys.path[:0] = [os.environ["SAO_TEST_INSIDE"], str(pathlib.Path(__file__).parent)]
import sao_test_wire  # noqa: E402, F401 - replaces the wire
from sao_vllm_sender import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
