"""Who a pronoun stands for."""
