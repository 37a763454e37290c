// Guides and the reference come before notebooks, and these before what tells of the past.
var Scorer = {
  score: ([page, , , , score]) => {
    if (/^(CHANGELOG|benchmarks)/.test(page)) return score - 20;
    if (/^notebooks/.test(page)) return score - 10;
    if (/^reference\/types/.test(page)) return score - 8;
    return score;
  },
  objNameMatch: 20,
  objPartialMatch: 4,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
