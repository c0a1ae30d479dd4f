"""The judge's agreement is measured when it is due, a few cases at a time, and the last figures are kept."""

from msgspec import structs

from gateway.judge.agreement import labelled_cases
from gateway.judge.measuring import AgreementCourse
from gateway.judge.questions import SCORE_FORM, Message
from tenancy.feedback import MeasuredAgreement

NOW = 1_800_000_000.0
DAY = 86_400.0


class Setting:
    """A judge that passes every answer and follows the order, and a book in memory."""

    def __init__(self) -> None:
        self.kept: list[MeasuredAgreement] = []
        self.now = NOW
        self.asked = 0
        self.why = ""

    def course(self, model: str = "big") -> AgreementCourse:
        return AgreementCourse(self, model, 7 * DAY, 3, lambda: self.now)

    async def agreement(self) -> MeasuredAgreement | None:
        return self.kept[-1] if self.kept else None

    async def keep_agreement(self, measured: MeasuredAgreement) -> None:
        self.kept.append(measured)

    async def ask(self, messages: list[Message], form: dict[str, object]) -> tuple[str, str]:
        assert "MARK" in messages[-1]["content"]
        self.asked += 1
        return ('{"score": 5}' if form == SCORE_FORM else '{"better": "A"}', self.why)

    async def look(self, course: AgreementCourse, times: int = 20) -> None:
        for _ in range(times):
            await course.step(self.ask, lambda: "MARK")


async def test_all_cases_are_asked_a_few_at_a_time_and_the_figures_are_kept() -> None:
    setting = Setting()
    course = setting.course()
    await setting.look(course, 1)
    assert (setting.asked, setting.kept) == (3, [])
    await setting.look(course)
    (found,) = setting.kept
    assert setting.asked == 24 + 2 * 16
    assert (found.model, found.at_unix, found.cases, found.passed_bad, found.swayed) == ("big", NOW, len(labelled_cases()), 12, 16)
    assert (found.score_agreement, found.pair_agreement) == (0.5, 0.0)


async def test_it_is_measured_again_when_its_time_has_come_and_for_another_model_or_set() -> None:
    setting = Setting()
    await setting.look(setting.course())
    asked = setting.asked
    await setting.look(setting.course())
    assert setting.asked == asked, "a restart measures nothing anew"
    setting.now += 7 * DAY
    await setting.look(setting.course())
    await setting.look(setting.course("other"))
    setting.kept.append(structs.replace(setting.kept[-1], cases_version="another"))
    await setting.look(setting.course("other"))
    assert setting.asked == 4 * asked


async def test_a_case_without_a_reply_waits_and_another_turn_begins_anew() -> None:
    setting = Setting()
    course = setting.course()
    setting.why = "no_room"
    await setting.look(course)
    assert setting.kept == []
    setting.why = ""
    await setting.look(course)
    assert len(setting.kept) == 1
    assert setting.kept[0].unreadable == 0
    setting.now += 7 * DAY
    await setting.look(course, 2)
    course.begin()
    await setting.look(setting.course())
    asked = setting.asked
    await setting.look(course)
    assert setting.asked == asked, "another worker has measured meanwhile"
