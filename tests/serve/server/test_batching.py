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
        await queue.close()
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
        await queue.close()
        await worker
        return calls

    assert asyncio.run(main()) == [[9], [1], [1]]


def test_more_than_can_be_answered_in_time_is_refused_at_once():
    async def main():
        queue = RequestQueue(batch_rows=4, wait_seconds=0.0)
        queue.learn(10, 1.0)  # a tenth of a second for each row
        first = asyncio.create_task(queue.ask(rows(4), within=1.0))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match=r"4 rows wait, for about 1\.1 s") as caught:
            await queue.ask(rows(7), within=1.0)
        first.cancel()
        return caught.value.retry_after

    assert asyncio.run(main()) == pytest.approx(0.6)


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
        await queue.close()
        await worker
        return calls

    assert asyncio.run(main()) == [[2]]


def test_what_was_put_back_comes_first_and_closing_answers_what_waits():
    async def main():
        queue, calls = RequestQueue(batch_rows=1, wait_seconds=10.0), []
        asked = [asyncio.create_task(queue.ask(rows(1, value=number), within=5.0)) for number in range(2)]
        await asyncio.sleep(0)
        lost = await queue.take()
        await queue.put_back(lost)
        assert lost[0].tries == 1
        again = await queue.take()
        assert again[0] is lost[0]
        again[0].answer.set_result(again[0].arrays[0])
        await queue.close()
        await answer(queue, calls)
        await asyncio.gather(*asked)
        with pytest.raises(Overloaded):
            await queue.ask(rows(1), within=1.0)
        return calls

    assert asyncio.run(main()) == [[1]]
