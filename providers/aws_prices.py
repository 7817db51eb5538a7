"""What machines and disks cost at AWS when its price list cannot be asked.

The figures are those of Amazon's page of on-demand prices for Linux as far as we knew them on `AS_OF`, in the three
regions that share them. They only stand in: the adapter asks the Price List API first, and a type or region that
neither knows is not offered on demand. Spot prices are never taken from here.
"""

from __future__ import annotations

from decimal import Decimal

AS_OF = "2025-06-30"
REGIONS = ("us-east-1", "us-east-2", "us-west-2")

# family -> size: dollars an hour
_TABLE: dict[str, str] = {
    "g4dn": "xlarge 0.526 2xlarge 0.752 4xlarge 1.204 8xlarge 2.176 12xlarge 3.912 16xlarge 4.352 metal 7.824",
    "g5": "xlarge 1.006 2xlarge 1.212 4xlarge 1.624 8xlarge 2.448 12xlarge 5.672 16xlarge 4.096 24xlarge 8.144 "
          "48xlarge 16.288",
    "g6": "xlarge 0.8048 2xlarge 0.9776 4xlarge 1.3232 8xlarge 2.0144 12xlarge 4.6016 16xlarge 3.3968 "
          "24xlarge 6.6752 48xlarge 13.3504",
    "g6e": "xlarge 1.861 2xlarge 2.24208 4xlarge 3.00424 8xlarge 4.52856 12xlarge 10.49264 16xlarge 7.57719 "
           "24xlarge 15.06559 48xlarge 30.13118",
    "p3": "2xlarge 3.06 8xlarge 12.24 16xlarge 24.48",
    "p3dn": "24xlarge 31.212",
    "p4d": "24xlarge 21.957642",
    "p4de": "24xlarge 27.44705",
    "p5": "4xlarge 6.88 48xlarge 55.04",
    "p5en": "48xlarge 63.296",
    "m7i": "large 0.1008 xlarge 0.2016 2xlarge 0.4032 4xlarge 0.8064 8xlarge 1.6128 12xlarge 2.4192 16xlarge 3.2256 "
           "24xlarge 4.8384 48xlarge 9.6768",
    "c7i": "large 0.08925 xlarge 0.1785 2xlarge 0.357 4xlarge 0.714 8xlarge 1.428 12xlarge 2.142 16xlarge 2.856 "
           "24xlarge 4.284 48xlarge 8.568",
}  # fmt: skip


def _read() -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for family, line in _TABLE.items():
        words = line.split()
        found |= {f"{family}.{size}": Decimal(price) for size, price in zip(words[::2], words[1::2], strict=True)}
    return found


ON_DEMAND: dict[str, Decimal] = _read()
CPU_FAMILIES = ("m7i", "c7i")  # what a job without a GPU is offered

# General purpose SSD (gp3), dollars a GB and month; elsewhere the dearest of the usual regions, so that a total is
# never too low.
DISK_GB_MONTH = dict.fromkeys(REGIONS, Decimal("0.08"))
DISK_GB_MONTH_ELSEWHERE = Decimal("0.152")
ADDRESS_HOUR = Decimal("0.005")  # a public IPv4 address, everywhere
HOURS_PER_MONTH = Decimal(730)


def extras(region: str, disk_gb: int) -> Decimal:
    """What disk and address of one machine cost an hour."""
    month = DISK_GB_MONTH.get(region, DISK_GB_MONTH_ELSEWHERE)
    return ADDRESS_HOUR + month * disk_gb / HOURS_PER_MONTH
