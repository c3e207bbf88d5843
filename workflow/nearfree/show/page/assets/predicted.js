// An answer about a deployment: each predictor, T(N) by module, and what engines are told.

// Every predictor's boundary for one deployment, its curve, and what engines are told.
async function predictedParts(source, places) {
  const rows = places.map((place) => ({ ...source.row(place), id: source.id(place) }));
  const main = rows.find((row) => row.composition === 'sum') || rows[0];
  const about = Object.fromEntries(CONDITION.map((name) => [name, main[name]]));
  const [forecast, schedules] = await Promise.all([table('forecast'), table('schedules')]);
  const unfit = main.fits === false;
  return [
    headline(
      main.id,
      unfit ? 'does not fit' : amount(main),
      (unfit
        ? [`${gigabytes(main, 'peak')} of ${gigabytes(main, 'capacity')}`]
        : [
            foretold(main) && `interval ${foretold(main)}`,
            main.baseline > 1 && `from N = ${main.baseline}, where every expert is awake`,
            limits(main),
          ]
      )
        .filter(Boolean)
        .join('; '),
      'predicted',
    ),
    make('p', { class: 'note' }, formats(main)),
    make('p', { class: 'note' }, memory(main)),
    forecast && curveParts(forecast, about, main),
    make(
      'h3',
      null,
      `The boundary by each predictor${unfit ? ', were there memory' : ''}`,
    ),
    grid(
      ['predictor', 'N_max', 'with all terms', 'interval', 'limited by', 'rule'],
      rows.map((row) => [
        `${row.predictor.replaceAll('_', ' ')}${row.predictor === main.predictor ? `, ${row.composition} of modules` : ''}`,
        opens(row.id, amount(row)),
        row.n_max_extended === null
          ? '-'
          : opens(row.id, amount({ ...row, unbounded: false }, 'n_max_extended')),
        foretold(row) || '-',
        limits(row) || row.refusal || '-',
        row.evidence || '-',
      ]),
    ),
    main.constants &&
      folded(
        `Constants of the work model, ${main.in_sample ? 'in sample' : 'out of sample'}`,
        make('p', { class: 'note' }, main.constants),
      ),
    schedules && scheduleParts(schedules, about, main.epsilon),
  ];
}

// The formats of weights, of what enters their products, and of the cache; graphs, if there are any.
function formats(row) {
  const parts = Object.entries(FORMATS).map(([name, words]) => `${words} ${row[name]}`);
  if (row.graphs !== null) parts.push(`steps padded to the CUDA graphs of ${row.graphs}`);
  return parts.join(', ');
}

// What a deployment takes in memory, and what fits there.
function memory(row) {
  if (row.peak_bytes === null)
    return 'memory: not known, since it is not known what the model stores';
  const gb = (name) => gigabytes(row, name);
  const parts =
    `weights ${gb('weights')}, cache ${gb('kv')}, activations ${gb('activations')}, ` +
    `allowance for the engine ${gb('engine')}`;
  if (row.capacity_bytes === null)
    return `memory: ${gb('peak')} (${parts}); that of ${row.platform} is not known`;
  const most = (value) => (value === null ? 'not limited by memory' : value || 'none');
  return [
    `memory: ${gb('peak')} of ${gb('capacity')} (${parts})`,
    row.rank_bytes < row.peak_bytes && `${gb('rank')} on the GPU with most`,
    !row.fits && `${row.gpus_needed ?? 'no number of'} ${row.platform} hold it`,
    `the largest b at this L is ${most(row.largest_batch)}`,
    `the largest L at this b, by memory alone, is ${most(row.largest_context)}`,
    row.left_out,
  ]
    .filter(Boolean)
    .join('; ');
}

function gigabytes(row, name) {
  return `${(row[`${name}_bytes`] / 1e9).toFixed(1)} GB`;
}

function curveParts(forecast, about, main) {
  const places = forecast.where(about);
  if (!places.length)
    return make('p', { class: 'note' }, 'T(N) is not known: the work model refuses.');
  const byN = Map.groupBy(places, (place) => forecast.at('n', place));
  const modules = [...new Set(places.map((place) => forecast.at('module', place)))];
  const lines = [...byN]
    .sort(([one], [other]) => one - other)
    .map(([n, some]) => ({
      n,
      ratio: forecast.at('ratio', some[0]),
      latency: some.reduce((sum, place) => sum + forecast.at('latency_us', place), 0),
      id: forecast.id(
        some.reduce((most, place) =>
          forecast.at('share', place) > forecast.at('share', most) ? place : most,
        ),
      ),
      of: new Map(some.map((place) => [forecast.at('module', place), place])),
    }));
  const base = lines.find(({ n }) => n === main.baseline);
  const points = base
    ? lines
        .filter(({ n }) => n >= main.baseline)
        .map((each) => ({ ...each, ratio: each.ratio / base.ratio }))
    : lines;
  const rows = lines.map((each) => [
    String(each.n),
    opens(each.id, shown(each.latency)),
    opens(each.id, each.ratio.toFixed(3)),
    ...modules.map((module) => {
      const place = each.of.get(module);
      return place === undefined
        ? '-'
        : opens(forecast.id(place), percent(forecast.at('share', place)));
    }),
  ]);
  return make(
    'div',
    null,
    plotted({
      points,
      epsilon: main.epsilon,
      baseline: base ? main.baseline : 1,
      boundary: main.unbounded || main.fits === false ? {} : { n: main.n_max, said: amount(main), low: main.low, high: main.high },
    }),
    folded(
      'T(N) as a table, with each module’s share',
      grid(['N', 'T(N), µs', 'T(N)/T(1)', ...modules], rows),
    ),
  );
}

function scheduleParts(schedules, about, epsilon) {
  const known = Object.entries({ ...about, epsilon });
  const places = schedules.where(
    Object.fromEntries(known.filter(([name]) => schedules.key.includes(name))),
  );
  return places.length
    ? make(
        'div',
        null,
        make('h3', null, 'What engines are told'),
        places.map((place) => [
          make(
            'p',
            null,
            opens(schedules.id(place), schedules.at('engine', place)),
            ', all batch sizes that fit at this context, counted from N = 1',
          ),
          make(
            'pre',
            { tabindex: '0' },
            schedules.at('option', place) ?? schedules.at('refusal', place) ?? 'none',
          ),
          make(
            'p',
            { class: 'note' },
            'The command that prints it: ',
            make('code', { class: 'command' }, scheduleCommand(schedules, place)),
          ),
        ]),
      )
    : null;
}

// The command that prints an engine's option; a release is written with `==`. Without graphs it
// says so: the command would take the engine's own.
function scheduleCommand(schedules, place) {
  const text = (name) => {
    const value = String(schedules.at(name, place));
    return ['attention', 'moe', 'graphs'].includes(name) ? value.replace(' ', '==') : value;
  };
  const options = schedules.key
    .filter((name) => !['deployment', 'engine', ...Object.keys(FORMATS)].includes(name))
    .filter((name) => ![null, FIELDS[name]?.quiet].includes(schedules.at(name, place)))
    .map((name) => `--${name.replaceAll('_', '-')} ${quoted(text(name))}`);
  const graphs = `--graphs ${schedules.at('graphs', place) === null ? 'none' : quoted(text('graphs'))}`;
  const asked = schedules.at('asked', place);
  return ['nearfree schedule', schedules.at('engine', place), ...options, graphs, '--worth 0', asked]
    .filter(Boolean)
    .join(' ');
}
