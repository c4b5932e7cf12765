"""The objects at the API server, where it answers slowly or refuses."""

from moorage.controller.objects import KubeObjects
from moorage.sandbox.kube import Body


class Classes:
    """Lists of RuntimeClasses; one comes while the first is being sent."""

    def __init__(self) -> None:
        self.answers = [["runc"], ["runc", "gvisor"]]
        self.objects = KubeObjects(self)

    async def items(self, *_: object, **__: object) -> list[Body]:
        if len(self.answers) == 2:
            self.objects.classes_changed()
        return [{"metadata": {"name": name}} for name in self.answers.pop(0)]


async def test_a_class_that_comes_while_they_are_listed_is_not_missed() -> None:
    api = Classes()
    assert await api.objects.runtime_classes() == {"runc"}
    assert await api.objects.runtime_classes() == {"runc", "gvisor"}
    assert await api.objects.runtime_classes() == {"runc", "gvisor"}
    assert api.answers == []
