"""The command of the user's own, as real scripts; what it may get wrong is named."""

import subprocess
import time

import pytest

from dovetail.engines.provisioning import CommandProvisioner
from dovetail.testing.provisioners import ProvisionerConformance
from dovetail.vocabulary import DovetailError

SCRIPT = """#!/bin/sh
cd "$(dirname "$0")" && mkdir -p nodes
case $1 in
start) echo "$2,$3,$4,$5," > "nodes/$2" ;;
stop) rm -f "nodes/$2" ;;
list) echo name,kind,zone,market,leaves; cat nodes/* 2>/dev/null; true ;;
esac
"""


def script(folder, text):
    path = folder / "nodes.sh"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


class TestCommand(ProvisionerConformance):
    @pytest.fixture
    def provisioner(self, tmp_path):
        return CommandProvisioner(script(tmp_path, SCRIPT))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\necho no quota >&2; exit 3", "must end with 0; it ended with 3 and said: no quota"),
        (
            "echo hello",
            r"nodes.sh list\) must run; found: .*Exec format.* A script begins with a line such as #!/bin/sh",
        ),
        ("#!/bin/sh\nprintf '\\351\\n'", r"nodes.sh list\) must print text in UTF-8; found: .*0xe9"),
        ("#!/bin/sh\nprintf '\\351\\n' >&2; exit 3", "it ended with 3 and said: \ufffd"),
        (
            "#!/bin/sh\necho kind,zone",
            "must list nodes in a table with the columns name,kind,zone,market,leaves; 'name' is",
        ),
        ("#!/bin/sh\necho name,kind,zone,market,leaves; echo a,b,c,cheap,", "its market, spot or on-demand"),
        ("#!/bin/sh\necho name,kind,zone,market,leaves; echo a,b,c,spot,soon", "in how many seconds it leaves"),
        ("#!/bin/sh\necho name,kind,zone,market,leaves; echo a,b", "its market, spot or on-demand"),
    ],
)
def test_what_a_command_gets_wrong_is_said(tmp_path, text, message):
    with pytest.raises(DovetailError, match=message):
        CommandProvisioner(script(tmp_path, text)).nodes()


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path):
    hangs = script(tmp_path, "#!/bin/sh\nsleep 86399 & wait")
    with pytest.raises(
        DovetailError, match=r"--provision \(.*nodes.sh stop a\) must answer within 1.0 s; it did not, and was ended"
    ):
        CommandProvisioner(hangs, answer_seconds=1.0).stop("a")
    assert subprocess.run(["pgrep", "-f", "^sleep 86399$"], check=False).returncode == 1


def test_a_notice_is_in_seconds_from_now(tmp_path):
    found = CommandProvisioner(script(tmp_path, "#!/bin/sh\necho name,kind,zone,market,leaves; echo a,b,c,spot,120"))
    (node,) = found.nodes()
    assert node.leaves_seconds == pytest.approx(time.time() + 120.0, abs=30.0)
