"""Tasks that visit shards of data where these lie: an open shop, its bound, its plan and its check."""

from dovetail.planning.hopping.hop_plan import link_between_nodes, orders_of, plan_with_shards, unvisitable
from dovetail.planning.hopping.open_shop import HopLink, OpenShop, ShardCopy, ShopDevice, Stay, Tour, Tours
from dovetail.planning.hopping.shop_checker import check_tours, tour_violations
from dovetail.planning.hopping.shop_planner import plan_tours
from dovetail.planning.hopping.tour_bounds import shop_bound

__all__ = [
    "HopLink",
    "OpenShop",
    "ShardCopy",
    "ShopDevice",
    "Stay",
    "Tour",
    "Tours",
    "check_tours",
    "link_between_nodes",
    "orders_of",
    "plan_tours",
    "plan_with_shards",
    "shop_bound",
    "tour_violations",
    "unvisitable",
]
