// The page's data: tables in compressed blocks, each read when it is first asked for.

const SCRIPTS = new Map(
  [...document.querySelectorAll('script[data-name]')].map((each) => [each.dataset.name, each]),
);
const opened = new Map();

// Whether the page holds a block of this name.
function has(name) {
  return SCRIPTS.has(name);
}

// The text of a block, inflated.
async function inflate(name) {
  const packed = atob(SCRIPTS.get(name).textContent.trim());
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).text();
}

// What is in a block of JSON; read once.
function read(name) {
  if (!opened.has(name)) opened.set(name, inflate(name).then(JSON.parse));
  return opened.get(name);
}

// A table by columns, of which rows are taken by their place.
class Table {
  constructor(packed) {
    Object.assign(this, packed);
    this.length = this.ids.length;
    this.names = Object.keys(this.columns);
    this.places = new Map(this.ids.map((id, place) => [id, place]));
  }

  // The value of a column in a row; a table that lacks the column has no value.
  at(name, place) {
    const column = this.columns[name];
    if (!column) return null;
    if ('same' in column) return column.same;
    return 'codes' in column ? column.values[column.codes[place]] : column.plain[place];
  }

  row(place) {
    return Object.fromEntries(this.names.map((name) => [name, this.at(name, place)]));
  }

  id(place) {
    return `${this.table}:${this.ids[place]}`;
  }

  // The ids of what a row was made from.
  from(place) {
    return this.from_.codes[place].map((code) => this.from_.values[code]);
  }

  formulaOf(place) {
    const [text, paper, code] = this.formulas[this.formula[place]];
    return { text, paper, code };
  }

  // The places of rows that have these values.
  where(wanted) {
    const names = Object.keys(wanted);
    const found = [];
    for (let place = 0; place < this.length; place += 1) {
      if (names.every((name) => this.at(name, place) === wanted[name])) found.push(place);
    }
    return found;
  }
}

const tables = new Map();

// A table by name; null where the page has none.
function table(name) {
  if (!has(`table:${name}`)) return Promise.resolve(null);
  if (!tables.has(name)) {
    tables.set(
      name,
      read(`table:${name}`).then(({ from, ...rest }) => new Table({ ...rest, from_: from })),
    );
  }
  return tables.get(name);
}

// An id's parts: a row of a table, an event of a segment, or an entry of the config.
function parse(id) {
  const mark = id.indexOf('#');
  if (mark > 0)
    return { kind: 'event', segment: id.slice(0, mark), line: Number(id.slice(mark + 1)) };
  if (id.startsWith('config/')) return { kind: 'config' };
  const [name, digest] = [id.slice(0, id.indexOf(':')), id.slice(id.indexOf(':') + 1)];
  return { kind: 'row', name, digest };
}

// The take that a segment belongs to.
function takeOf(segment) {
  return segment.slice(0, segment.lastIndexOf('.'));
}

// The raw samples of some lines of a segment, one object a line; null where the page has none.
async function visits(segment, lines) {
  const name = `samples:${takeOf(segment)}`;
  if (!has(name)) return null;
  const kept = (await read(name))[segment];
  if (!kept) return null;
  const places = new Map(kept.line.map((line, place) => [line, place]));
  if (!lines.every((line) => places.has(line))) return null;
  return lines.map((line) => {
    const place = places.get(line);
    return Object.fromEntries(Object.keys(kept).map((each) => [each, kept[each][place]]));
  });
}
