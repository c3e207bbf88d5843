// What a row rests on: the rule of a release, and other rows.

const CITED = /(\S+):(\d+)-(\d+) \(([0-9a-f]{12})\)/g;

// The rule that a row names: release, file, lines and hash, with the rows that hold it.
async function ruleOf(source, place) {
  const cited = source.at('evidence', place) || source.at('rule', place);
  const quote = source.at('quote', place);
  if (quote) return part('As the release says it', make('pre', null, quote));
  if (!cited || source.table === 'claims') return null;
  const [branches, tuned] = await Promise.all(['granularity', 'tuned'].map(table));
  const found = [...cited.matchAll(CITED)].flatMap((parts) => citedRows(branches, tuned, parts));
  const asked = ['moe', 'attention', 'version'].map((name) =>
    String(source.at(name, place)).split(' ').at(-1),
  );
  const own = found.filter(({ version }) => asked.includes(version));
  const links = (own.length ? own : found).map(({ rules, at, version }) => {
    const said = rules.at('path', at)
      ? `${rules.at('path', at)}, ${rules.at('condition', at)}`
      : `tuned, tokens ${rules.at('tokens_from', at)} on`;
    return make('li', null, opens(rules.id(at), `${rules.at('package', at)} ${version}: ${said}`));
  });
  return part('Rule', make('p', null, make('bdi', null, cited)), listed(links));
}

// The rows of rules that a text cites, as an audit finds them: those that hold lines inside of its
// own, else what was tuned in its file, else of each rule of its file a row, whose event quotes it.
function citedRows(branches, tuned, [, file, first, last, digest]) {
  const of = (rules, where) =>
    [...Array(rules?.length ?? 0).keys()]
      .filter((at) => rules.at(where, at) === file)
      .filter((at) => (rules.at('sha256', at) || '').startsWith(digest))
      .map((at) => ({ rules, at, version: rules.at('versions', at) ?? rules.at('version', at) }));
  const same = of(branches, 'place');
  const inside = same.filter(({ at }) => {
    const [from, to] = (branches.at('lines', at) || '').split('-').map(Number);
    return from >= Number(first) && to <= Number(last);
  });
  const rule = ({ at, version }) =>
    [branches.at('package', at), version, branches.at('path', at)].join();
  const each = [...new Map(same.map((one) => [rule(one), one])).values()];
  return [inside, of(tuned, 'file'), each].find((some) => some.length) || [];
}

// A list whose many items are folded.
function listed(items) {
  if (!items.length) return null;
  if (items.length <= MANY) return make('ul', { class: 'made' }, items);
  return make(
    'div',
    null,
    make('ul', { class: 'made' }, items.slice(0, MANY)),
    folded(`${items.length - MANY} more`, make('ul', { class: 'made' }, items.slice(MANY))),
  );
}

// What a row was made from: other rows by table, and events by segment.
async function madeFrom(source, place) {
  const ids = source.from(place);
  const parts = [];
  const byName = Map.groupBy(ids, (id) =>
    id.includes('#') ? 'events' : parse(id).name || 'config',
  );
  for (const [name, some] of byName) {
    if (name === 'events') parts.push(...(await eventParts(some)));
    else if (name === 'config')
      parts.push(
        part('From the config', listed(some.map((id) => make('li', null, opens(id, id))))),
      );
    else parts.push(await rowsPart(name, some));
  }
  return parts;
}

const TELLING = {
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
    const told = (TELLING[name] || ['value'])
      .filter((each) => source.at(each, place) !== null)
      .map((each) =>
        `${inWords(each) || named(each).words} ${shown(source.at(each, place))} ${named(each).unit}`.trim(),
      );
    return make('li', null, opens(id, told.join(', ') || subject(source, place)));
  });
  return part(
    `From ${ids.length === 1 ? 'a row' : `${ids.length} rows`} of ${name.replaceAll('_', ' ')}`,
    listed(items),
  );
}
