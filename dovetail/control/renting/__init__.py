"""A controller that rents: nodes are started where they are cheap, moved from as prices change, and given back."""

from dovetail.control.renting.renting import Renting, RentingMaker, RentingTerms

__all__ = ["Renting", "RentingMaker", "RentingTerms"]
