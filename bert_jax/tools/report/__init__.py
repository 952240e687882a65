"""The results of runs as one long pandas DataFrame, for notebooks and for the pages of a report.

from bert_jax.tools import report
df = report.long('S')                                # a row for each value; columns: table.py
df[df.final & (df.metric == 'mlm')].groupby('arm').value.describe()
report.compare(df, 'mlm', 'masked_lm_prob=0.15')     # means, intervals, differences, p
found = report.read('S', baseline='masked_lm_prob=0.15')
IPython.display.HTML(report.shown(found))            # or report.write(found, 'S/report', 'S')
"""

from bert_jax.tools.report.comparison import compare
from bert_jax.tools.report.pages import shown, text, write
from bert_jax.tools.report.panels import Panel, Report, read
from bert_jax.tools.report.table import long

__all__ = ['Panel', 'Report', 'compare', 'long', 'read', 'shown', 'text', 'write']
