"""An error of the user is one sentence."""

import contextlib
import re

import pytest

from bert_jax.errors import InputError


@contextlib.contextmanager
def refused(pattern):
  """A context that ends in an InputError of one line in which a regex is found."""
  with pytest.raises(InputError, match=pattern) as caught:
    yield
  assert '\n' not in str(caught.value)


def refusal(function, *arguments, **options):
  """The one sentence with which a call is refused."""
  with pytest.raises(InputError) as caught:
    function(*arguments, **options)
  assert '\n' not in str(caught.value)
  return str(caught.value)


def one_sentence(said):
  """`refused`, by words in place of a regex."""
  return refused(re.escape(said))
