// The page's data: tables in compressed blocks, each inflated when it is first read.

const SCRIPTS = new Map(
  [...document.querySelectorAll('script[data-name]')].map((script) => [script.dataset.name, script]),
);
const blockData = new Map();

// Whether the page holds a block of this name.
function has(name) {
  return SCRIPTS.has(name);
}

// The text of a block, inflated.
async function inflate(name) {
  const encoded = atob(SCRIPTS.get(name).textContent.trim());
  const bytes = Uint8Array.from(encoded, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).text();
}

// The data of a block of JSON, inflated once.
function read(name) {
  if (!blockData.has(name)) blockData.set(name, inflate(name).then(JSON.parse));
  return blockData.get(name);
}

// A table by columns; `place` is the index of a row.
class Table {
  constructor(encoded) {
    Object.assign(this, encoded);
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

  // The ids of a row's inputs.
  from(place) {
    return this.from_.codes[place].map((code) => this.from_.values[code]);
  }

  formulaOf(place) {
    const [text, paper, code] = this.formulas[this.formula[place]];
    return { text, paper, code };
  }

  // The indices of the rows that have these values.
  where(wanted) {
    const names = Object.keys(wanted);
    const matches = [];
    for (let place = 0; place < this.length; place += 1) {
      if (names.every((name) => this.at(name, place) === wanted[name])) matches.push(place);
    }
    return matches;
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

// The raw samples of some lines of a segment, one object per line; null where the page has none.
async function visits(segment, lines) {
  const block = `samples:${takeOf(segment)}`;
  if (!has(block)) return null;
  const columns = (await read(block))[segment];
  if (!columns) return null;
  const places = new Map(columns.line.map((line, place) => [line, place]));
  if (!lines.every((line) => places.has(line))) return null;
  return lines.map((line) => {
    const place = places.get(line);
    return Object.fromEntries(Object.keys(columns).map((name) => [name, columns[name][place]]));
  });
}
