// The explorer: choose what there is, and see T(N), the boundary, what limits it, and the option.

const KINDS = {
  observed: { fields: CHOICES, table: 'boundaries' },
  predicted: { fields: [...CONDITION, 'baseline', 'epsilon'], table: 'lookup' },
};
const choices = document.getElementById('choices');
const answer = document.getElementById('answered');
let site = null;
let asked = { kind: 'observed' };
let linked = new Map();
let turn = 0;

// Take over what a link says, and show it.
async function explore(params) {
  site ??= await read('site');
  linked = new Map(params);
  const kind = params.get('kind');
  if (Object.hasOwn(KINDS, kind ?? '')) {
    asked = { kind };
    linked.delete('kind');
  }
  for (const name of KINDS[asked.kind].fields) if (params.has(name)) asked[name] = params.get(name);
  await refresh();
}

// What a link to this view says.
function view() {
  return Object.fromEntries(Object.entries(asked).filter(([, value]) => value !== null));
}

async function refresh() {
  turn += 1;
  const mine = turn;
  const { kind } = asked;
  const source = await table(KINDS[kind].table);
  const places = narrow(source, kind);
  const parts = places.length
    ? await (kind === 'predicted'
        ? predictedParts(source, places)
        : observedParts(source, places[0]))
    : [make('p', null, 'There is nothing of this kind here.')];
  if (mine !== turn) return;
  answer.replaceChildren(...[missed(), ...parts].filter(Boolean));
  answer.dataset.shown = kind;
  document.documentElement.dataset.explored = String(turn);
}

// What the link asked for and is not here.
function missed() {
  const said = [...linked].filter(([name, value]) => (asked[name] ?? '') !== value);
  return said.length
    ? make(
        'p',
        { class: 'banner' },
        `not here: ${said.map(([name, value]) => `${name} = ${value}`).join(', ')}`,
      )
    : null;
}

// Narrow the rows field by field, and offer what is left of each; the rows that all choices leave.
function narrow(source, kind) {
  const boxes = [];
  let places = [...Array(source.length).keys()];
  if (kind === 'observed') places = places.filter((place) => source.at('newest', place));
  for (const name of KINDS[kind].fields) {
    const there = [...new Set(places.map((place) => source.at(name, place)))].sort(inOrder);
    if (!there.length) break;
    const text = (value) => (value === null ? '' : String(value));
    const fallback = [site.epsilon, 'dense_ffn'].find((value) => there.includes(value)) ?? there[0];
    const wanted = there.find((value) => text(value) === asked[name]);
    const chosen = wanted === undefined ? fallback : wanted;
    asked[name] = chosen === null ? null : text(chosen);
    places = places.filter((place) => source.at(name, place) === chosen);
    if (there.length > 1) boxes.push(box(source, name, there, chosen));
  }
  const focused = document.activeElement && document.activeElement.name;
  choices.replaceChildren(...boxes);
  const again = focused && choices.querySelector(`select[name="${CSS.escape(focused)}"]`);
  if (again) again.focus();
  document.querySelectorAll('input[name="kind"]').forEach((each) => {
    each.checked = each.value === kind;
  });
  return places;
}

function inOrder(one, other) {
  if (typeof one === 'number' && typeof other === 'number') return one - other;
  return String(one ?? '').localeCompare(String(other ?? ''), 'en');
}

const LABELS = {
  deployment: 'entry of deployments.yaml',
  attention: 'attention backend',
  epsilon: 'tolerance',
  baseline: 'baseline N',
  stream: 'study',
  setting_key: 'setting',
};

function box(source, name, there, chosen) {
  const said = (value) =>
    value === null ? 'none' : name === 'epsilon' ? percent(value) : shown(value);
  const select = make(
    'select',
    { name },
    there.map((value) => {
      const option = make('option', { value: value === null ? '' : String(value) }, said(value));
      option.selected = value === chosen;
      return option;
    }),
  );
  const label = FIELDS[name]?.label || LABELS[name] || named(name).words;
  return make('label', null, make('span', null, label), select);
}
