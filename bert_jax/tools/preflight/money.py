"""What a run costs: days, chip-hours, and dollars on demand and on spot chips."""

import math
import re
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import InputError
from bert_jax.tools.preflight.step_time import fullest


def rates(price: str, spot: str, number: int) -> list[tuple[float, float]]:
  """[(dollars for a chip-hour, share of it on a spot chip)] of each topology, or NaN."""
  out = []
  for name, text, most in (('price', price, 1e6), ('spot', spot, 1.0)):
    amounts = [float(x) if re.fullmatch(r'\d*\.?\d+', x) else 0 for x in text.split(',') if text]
    known = len(amounts) in (0, 1, number) and (price or not spot)
    if not known or not all(0 < x <= most for x in amounts):
      use = '--price is dollars for a chip-hour, such as 1.2, --spot a share of it, such as 0.4'
      raise InputError(f'--{name} {text} makes no sense: {use}; one for all topologies, or each.')
    out.append((amounts or [math.nan]) * number)
  return list(zip(*out))[:number]


def cost(report: Mapping[str, Any], rate: tuple[float, float]) -> dict[str, Any]:
  """The cost of a run, {'days', 'chip_hours', 'dollars', 'spot_dollars': [least, most]}, by all
  estimates, communication included if known; {} if it does not fit or cannot be timed."""
  (price, spot), rows = rate, fullest(report)
  if not rows:
    return {}
  days = sorted(report['full_steps'] * row['step_s'] / 86400 for row in rows)
  hours = sorted(row['chip_hours'] for row in rows)
  out: dict[str, Any] = {'days': [days[0], days[-1]], 'chip_hours': [hours[0], hours[-1]]}
  if not math.isnan(price):
    out |= {'price': price, 'dollars': [price * x for x in out['chip_hours']]}
  if not math.isnan(price * spot):
    out |= {'spot': spot, 'spot_dollars': [spot * x for x in out['dollars']]}
  return out
