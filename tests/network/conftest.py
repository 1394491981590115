"""Sites of these tests allow everything, but for those whose policy is what is tested.

Questions are answered with "not yet" after a second, not after twenty.
"""

import pytest

from archipel.federation.site.policy import Policy


@pytest.fixture(autouse=True, scope="module")
def openly(request):
    """A site without a policy file has an open policy; a module marked `careful` the default.

    Sites that are processes of their own have their policy in a file.
    """
    if request.node.get_closest_marker("careful") is not None:
        yield
        return
    careful = Policy.read.__func__

    def read(cls, home):
        return careful(cls, home) if (home / "policy.toml").exists() else cls.open()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Policy, "read", classmethod(read))
        yield


@pytest.fixture(autouse=True)
def promptly(monkeypatch):
    """A site that is held, waiting for work, soon hears that it was paused or that nothing came."""
    monkeypatch.setattr("archipel.engines.network.answers.POLL", 1.0)
    monkeypatch.setattr("archipel.federation.coordinator.coordinator.POLL", 1.0)
