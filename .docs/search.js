// Pages by task come first, then those by subject and the reference, then notebooks, then what tells of the inside or of the
// past. A title that is what was asked for comes before the texts of pages.
var Scorer = {
  score: (result) => {
    const [page, , anchor, , score, , kind] = result;
    if (kind === "index") {
      // Of a section: it is shown with its title, as those are that are found by it.
      const { alltitles, docnames } = Search._index;
      const isThere = ([file, id]) => docnames[file] === page && `#${id}` === anchor;
      const section = Object.entries(alltitles).find(([, places]) => places.some(isThere));
      if (section) result[1] += ` > ${section[0]}`;
      return score;
    }
    let found = kind === "title" ? score + 20 : score;
    if (/^guides/.test(page)) found += 8;
    if (/^(CHANGELOG|benchmarks)/.test(page)) found -= 20;
    if (/^notebooks/.test(page)) found -= 10;
    if (/^reference\/(types|jobs_|specification)/.test(page)) found -= 8;
    if (/^wids\/(core\/(files|prefetch|collection)|writing\/pack|tools\/index)/.test(page)) found -= 8;
    return found;
  },
  objNameMatch: 20,
  objPartialMatch: 2,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
