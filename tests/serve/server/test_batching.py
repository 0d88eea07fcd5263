import asyncio

import numpy
import pytest

from dovetail.serve.server.batching import Overloaded, RequestQueue


def rows(count, width=2, value=0.0):
    return [numpy.full((count, width), value)]


async def answer(queue, calls):
    """A worker that says how many rows each call had and answers with the rows themselves."""
    while requests := await queue.take():
        calls.append([each.rows for each in requests])
        for each in requests:
            if not each.answer.done():
                each.answer.set_result(each.arrays[0])


def test_requests_close_together_are_one_call_in_their_order():
    async def main():
        queue, calls = RequestQueue(batch_rows=8, wait_seconds=0.05), []
        worker = asyncio.create_task(answer(queue, calls))
        found = await asyncio.gather(*(queue.ask(rows(2, value=number), within=5.0) for number in range(5)))
        queue.close()
        await worker
        return calls, found

    calls, found = asyncio.run(main())
    assert calls == [[2, 2, 2, 2], [2]]
    assert [each[0, 0] for each in found] == [0, 1, 2, 3, 4]


def test_a_large_request_goes_alone_and_unlike_shapes_apart():
    async def main():
        queue, calls = RequestQueue(batch_rows=4, wait_seconds=0.0), []
        asked = [queue.ask(rows(9), within=5.0), queue.ask(rows(1), within=5.0), queue.ask(rows(1, 3), within=5.0)]
        waiting = [asyncio.create_task(each) for each in asked]
        await asyncio.sleep(0)
        worker = asyncio.create_task(answer(queue, calls))
        await asyncio.gather(*waiting)
        queue.close()
        await worker
        return calls

    assert asyncio.run(main()) == [[9], [1], [1]]


def test_more_than_can_be_answered_in_time_is_refused_at_once():
    async def main():
        queue = RequestQueue(batch_rows=4, wait_seconds=0.0)
        queue.learn(10, 1.0)  # a tenth of a second for each row
        first = asyncio.create_task(queue.ask(rows(4), within=1.0))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match=r"4 rows wait, for about 1\.1 s, too close to the 1 s") as caught:
            await queue.ask(rows(7), within=1.0)
        first.cancel()
        return caught.value.retry_after, queue.asked

    # What was refused was asked for, too: plans are for what comes.
    assert asyncio.run(main()) == (pytest.approx(0.6), 2)


def test_late_and_abandoned_requests_are_not_computed():
    async def main():
        queue, calls = RequestQueue(batch_rows=4, wait_seconds=0.0), []
        with pytest.raises(TimeoutError):
            await queue.ask(rows(1), within=0.01)
        kept = asyncio.create_task(queue.ask(rows(2), within=5.0))
        await asyncio.sleep(0)
        worker = asyncio.create_task(answer(queue, calls))
        await kept
        assert queue.rows_waiting == 0
        queue.close()
        await worker
        return calls

    assert asyncio.run(main()) == [[2]]


def test_what_was_put_back_comes_first_and_closing_answers_what_waits():
    async def main():
        queue, calls = RequestQueue(batch_rows=1, wait_seconds=10.0), []
        asked = [asyncio.create_task(queue.ask(rows(1, value=number), within=5.0)) for number in range(2)]
        await asyncio.sleep(0)
        lost = await queue.take()
        queue.put_back(lost)
        assert lost[0].tries == 1
        again = await queue.take()
        assert again[0] is lost[0]
        again[0].answer.set_result(again[0].arrays[0])
        queue.close()
        await answer(queue, calls)
        await asyncio.gather(*asked)
        with pytest.raises(Overloaded):
            await queue.ask(rows(1), within=1.0)
        return calls

    assert asyncio.run(main()) == [[1]]


def test_the_queue_grows_while_answers_come_as_foretold_and_is_short_after_late_ones():
    async def main(lateness, times):
        now = 0.0
        queue = RequestQueue(batch_rows=1, wait_seconds=0.0, clock=lambda: now)
        queue.learn(10, 1.0)
        for _ in range(times):
            asked = asyncio.create_task(queue.ask(rows(1), within=10.0))
            await asyncio.sleep(0)
            (taken,) = await queue.take()
            now += lateness
            taken.answer.set_result(taken.arrays[0])
            queue.release([taken])
            await asked
        waiting = asyncio.create_task(queue.ask(rows(1), within=10.0))
        await asyncio.sleep(0)
        found = sum(_is_taken(queue, count) for count in range(1, 100))
        waiting.cancel()
        return found

    def _is_taken(queue, count):
        try:
            queue.refuse_late(count, within=10.0)
        except Overloaded:
            return False
        return True

    assert asyncio.run(main(0.1, 20)) < 55  # a rush may begin
    assert asyncio.run(main(0.1, 1500)) > 75
    assert asyncio.run(main(6.0, 20)) < 55


def test_calls_under_way_count_and_a_retired_taker_leaves_requests_to_others():
    async def main():
        queue, retired = RequestQueue(batch_rows=1, wait_seconds=0.0), []
        queue.learn(1, 0.5)
        one = asyncio.create_task(queue.take(is_retired=lambda: bool(retired)))
        other = asyncio.create_task(queue.take())
        await asyncio.sleep(0)
        retired.append(True)
        asked = asyncio.create_task(queue.ask(rows(1), within=5.0))
        assert await one == []
        (taken,) = await other
        before = queue.expected_seconds(1)
        queue.release([taken])
        taken.answer.set_result(taken.arrays[0])
        await asked
        return before, queue.expected_seconds(1)

    assert asyncio.run(main()) == (1.0, 0.5)
