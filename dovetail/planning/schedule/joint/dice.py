"""Numbers that look random and are the same every time: planning has no dice of its own."""


class Dice:
    """A linear congruential generator with the constants of Knuth's MMIX.

    >>> dice = Dice()
    >>> [dice.below(6) for _ in range(5)] == [Dice().below(6), *[dice.below(6) for _ in range(4)]]
    False
    >>> Dice().below(1000) == Dice().below(1000)
    True
    """

    def __init__(self) -> None:
        self._state = 1

    def below(self, limit: int) -> int:
        """A whole number from 0 to less than the limit."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self._state >> 33) % limit
