"""Splits paragraphs into sentences, and knows which scripts put no blanks between words."""

import re

# Characters of scripts written without blanks between words, as the inside of a regex class: Thai,
# Lao, Tibetan, Burmese; Khmer; Tai; Chinese, Japanese; Yi; Javanese and others of South-East Asia.
UNSPACED = (
  '\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\u2e80-\u312f\u31a0-\u9fff'
  '\ua000-\ua4cf\ua980-\ua9ff\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f\U00016fe0-\U0001b2ff'
  '\U00020000-\U0003ffff'
)

_OPEN = '"\'“‘„‚«‹「『（《(【[{¿¡*_—–-'
_CLOSE = '"\'”’“‘»›)]}*_）】》〉」』〕］'
# Marks that end a sentence by themselves: CJK, Devanagari, Arabic, Armenian, Ethiopic, ...
_ALONE = '[。｡！？।॥؟۔։።၊။។᙮]'
# Marks that end one only before white space; German closes its quotes with “ and ‘. The look
# behind keeps a long row of dots linear; it follows the mark, which is faster to search for.
_BEFORE_BLANK = rf'(?P<mark>[.!?…](?<![.!?…]{{2}})[.!?…]*)[{re.escape(_CLOSE)}]*\s+'
_BREAK = re.compile(rf"""{_ALONE}+[!?…]*["'”’»)\]）】》〉」』〕］]*\s*|{_BEFORE_BLANK}""")
_LAST_WORD = re.compile(r'[^\W\d_][\w.]*$')
_TITLES = {
  *('Mr', 'Mrs', 'Ms', 'Messrs', 'Dr', 'Prof', 'St', 'Ste', 'Mt', 'Rev', 'Hon', 'Gen', 'Col'),
  *('Maj', 'Capt', 'Lt', 'Sgt', 'Gov', 'Sen', 'Rep', 'Mme', 'Mlle', 'Sr', 'Sra', 'Hr', 'Fr'),
  *('vs', 'cf', 'al', 'viz'),
}
_COUNTERS = {'No', 'Nr', 'Nos', 'Vol', 'Fig', 'Sec', 'Ch', 'Art', 'p', 'pp', 'no', 'vol'}


def split_sentences(paragraph: str) -> list[str]:
  """Splits a paragraph into sentences by rules that depend on no language.
  A sentence ends at . ! ? or … before white space, closing quotes and brackets included, unless a
  small letter follows or the full stop belongs to an initial, an abbreviation such as U.S., a title
  or the number that opens a list item. It also ends at marks such as 。 or । wherever they are.
  Nothing but white space between sentences is lost."""
  sentences, start = [], 0
  for match in _BREAK.finditer(paragraph):
    if match['mark'] and not _ends_sentence(paragraph, start, match):
      continue
    sentences.append(paragraph[start : match.end()].strip())
    start = match.end()
  sentences.append(paragraph[start:].strip())
  return [sentence for sentence in sentences if sentence]


def _ends_sentence(text: str, start: int, match: re.Match) -> bool:
  """Whether the mark that _BREAK matched ends the sentence that begins at `start`."""
  following = text[match.end() : match.end() + 8].lstrip(_OPEN)[:1]
  if following.islower():
    return False
  if match['mark'] != '.':
    return True
  before = text[max(start, match.start() - 24) : match.start()]
  if before.strip().isdigit():  # "1. The first item"
    return False
  last = _LAST_WORD.search(before)
  word = last[0] if last else ''
  initial = len(word) == 1 and word.isupper() and word != 'I'
  abbreviation = '.' in word and max(map(len, word.split('.'))) == 1
  counter = word in _COUNTERS and following.isdigit()
  return not (initial or abbreviation or counter or word in _TITLES)
