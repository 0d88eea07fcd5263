"""Tasks that visit shards of data where these lie: an open shop, its bound, its plan and its check."""

from dovetail.planning.hopping.open_shop import HopLink, OpenShop, ShopDevice, Stay, Tour, Tours
from dovetail.planning.hopping.tour_bounds import shop_bound
from dovetail.planning.hopping.shop_checker import check_tours, tour_violations
from dovetail.planning.hopping.shop_planner import plan_tours

__all__ = [
    "HopLink",
    "OpenShop",
    "ShopDevice",
    "Stay",
    "Tour",
    "Tours",
    "check_tours",
    "plan_tours",
    "shop_bound",
    "tour_violations",
]
