// The evidence of a row: the rule of a release, and other rows.

const CITED = /(\S+):(\d+)-(\d+) \(([0-9a-f]{12})\)/g;

// The section on the rule that a row cites: release, file, lines and hash, with links to its rows.
async function ruleSection(source, place) {
  const cited = source.at('evidence', place) || source.at('rule', place);
  const quote = source.at('quote', place);
  if (quote) return part('Source text of the release', make('pre', null, quote));
  if (!cited || source.table === 'claims') return null;
  const [branches, tuned] = await Promise.all(['granularity', 'tuned'].map(table));
  const rules = [...cited.matchAll(CITED)].flatMap((parts) => citedRows(branches, tuned, parts));
  const ownVersions = ['moe', 'attention', 'version'].map((name) =>
    String(source.at(name, place)).split(' ').at(-1),
  );
  const ownRules = rules.filter(({ version }) => ownVersions.includes(version));
  const links = (ownRules.length ? ownRules : rules).map(({ rules, at, version }) => {
    const condition = rules.at('path', at)
      ? `${rules.at('path', at)}, ${rules.at('condition', at)}`
      : `tuned, tokens ${rules.at('tokens_from', at)} on`;
    return make('li', null, provenanceLink(rules.id(at), `${rules.at('package', at)} ${version}: ${condition}`));
  });
  return part('Rule', make('p', null, make('bdi', null, cited)), itemList(links));
}

// The rows that a citation refers to, as in an audit: branches whose lines are inside the cited lines,
// else entries of the cited tuned file, else one row per rule of the cited file.
function citedRows(branches, tuned, [, file, first, last, digest]) {
  const citing = (rules, where) =>
    [...Array(rules?.length ?? 0).keys()]
      .filter((at) => rules.at(where, at) === file)
      .filter((at) => (rules.at('sha256', at) || '').startsWith(digest))
      .map((at) => ({ rules, at, version: rules.at('versions', at) ?? rules.at('version', at) }));
  const sameFile = citing(branches, 'place');
  const inside = sameFile.filter(({ at }) => {
    const [from, to] = (branches.at('lines', at) || '').split('-').map(Number);
    return from >= Number(first) && to <= Number(last);
  });
  const rule = ({ at, version }) =>
    [branches.at('package', at), version, branches.at('path', at)].join();
  const firstOfRule = [...new Map(sameFile.map((entry) => [rule(entry), entry])).values()];
  return [inside, citing(tuned, 'file'), firstOfRule].find((group) => group.length) || [];
}

// A list that folds its items beyond the first ones.
function itemList(items) {
  if (!items.length) return null;
  if (items.length <= MOST_ITEMS) return make('ul', { class: 'made' }, items);
  return make(
    'div',
    null,
    make('ul', { class: 'made' }, items.slice(0, MOST_ITEMS)),
    foldedPart(`${items.length - MOST_ITEMS} more`, make('ul', { class: 'made' }, items.slice(MOST_ITEMS))),
  );
}

// The sections on the inputs of a row: other rows by table, and events by segment.
async function sourceSections(source, place) {
  const ids = source.from(place);
  const parts = [];
  const byName = Map.groupBy(ids, (id) =>
    id.includes('#') ? 'events' : parse(id).name || 'config',
  );
  for (const [name, group] of byName) {
    if (name === 'events') parts.push(...(await eventParts(group)));
    else if (name === 'config')
      parts.push(
        part('From the config', itemList(group.map((id) => make('li', null, provenanceLink(id, id))))),
      );
    else parts.push(await rowsPart(name, group));
  }
  return parts;
}

const SUMMARY_COLUMNS = {
  latency: ['n', 'latency_us', 'ratio'],
  boundaries: ['epsilon', 'n_max'],
  platforms: ['balance_flop_per_byte'],
  predictions: ['n_max'],
  validation: ['n_max', 'predicted', 'hit'],
  time_shares: ['n', 'latency_us', 'share'],
  settings: [],
  lookup: ['n_max'],
  forecast: ['n', 'latency_us'],
  work: ['n'],
};

async function rowsPart(name, ids) {
  const source = await table(name);
  const items = ids.map((id) => {
    const place = source ? source.places.get(parse(id).digest) : undefined;
    if (place === undefined) return make('li', null, make('code', null, id), ' (not in this page)');
    const cells = (SUMMARY_COLUMNS[name] || ['value'])
      .filter((name) => source.at(name, place) !== null)
      .map((name) =>
        `${knownName(name) || nameAndUnit(name).words} ${valueText(source.at(name, place))} ${nameAndUnit(name).unit}`.trim(),
      );
    return make('li', null, provenanceLink(id, cells.join(', ') || subject(source, place)));
  });
  return part(
    `From ${ids.length === 1 ? 'a row' : `${ids.length} rows`} of ${name.replaceAll('_', ' ')}`,
    itemList(items),
  );
}
