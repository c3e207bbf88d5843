// The answer for a deployment: every predictor, T(N) by module, and the options of engines.

// The boundary of one deployment by every predictor, its curve, and the options of engines.
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
            predictionInterval(main) && `interval ${predictionInterval(main)}`,
            main.baseline > 1 && `from N = ${main.baseline}, where every expert is active`,
            limitText(main) && `limited by ${limitText(main)}`,
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
      `The boundary by each predictor${unfit ? ', if memory is ignored' : ''}`,
    ),
    grid(
      ['predictor', 'N_max', 'with all terms', 'interval', 'limited by', 'rule'],
      rows.map((row) => [
        `${row.predictor.replaceAll('_', ' ')}${row.predictor === main.predictor ? `, ${row.composition} of modules` : ''}`,
        provenanceLink(row.id, amount(row)),
        row.n_max_extended === null
          ? '-'
          : provenanceLink(row.id, amount({ ...row, unbounded: false }, 'n_max_extended')),
        predictionInterval(row) || '-',
        limitText(row) || row.refusal || '-',
        row.evidence || '-',
      ]),
    ),
    main.constants &&
      foldedPart(
        `Constants of the work model, ${main.in_sample ? 'in sample' : 'out of sample'}`,
        make('p', { class: 'note' }, main.constants),
      ),
    schedules && scheduleParts(schedules, about, main.epsilon),
  ];
}

// The formats of weights, activations and cache, and the CUDA graphs if there are any.
function formats(row) {
  const parts = Object.entries(FORMATS).map(([name, words]) => `${words} ${row[name]}`);
  if (row.graphs !== null) parts.push(`steps padded to the CUDA graphs of ${row.graphs}`);
  return parts.join(', ');
}

// The memory of a deployment, and the largest batch and context that fit.
function memory(row) {
  if (row.peak_bytes === null)
    return 'memory: unknown, since the formats that the model stores are unknown';
  const gb = (name) => gigabytes(row, name);
  const parts =
    `weights ${gb('weights')}, cache ${gb('kv')}, activations ${gb('activations')}, ` +
    `allowance for the engine ${gb('engine')}`;
  if (row.capacity_bytes === null)
    return `memory: ${gb('peak')} (${parts}); the capacity of ${row.platform} is unknown`;
  const limit = (value) =>
    value === null ? 'not limited by memory' : value ? value.toLocaleString('en') : 'none';
  return [
    `memory: ${gb('peak')} of ${gb('capacity')} (${parts})`,
    row.rank_bytes < row.peak_bytes && `${gb('rank')} on the fullest GPU`,
    !row.fits && `${row.gpus_needed ?? 'no number of'} ${row.platform} hold it`,
    ['largest batch at this context', limit(row.largest_batch)].join(': '),
    ['largest context at this batch, by memory alone', limit(row.largest_context)].join(': '),
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
    return make('p', { class: 'note' }, 'T(N) is unknown: the work model refuses this deployment.');
  const byN = Map.groupBy(places, (place) => forecast.at('n', place));
  const modules = [...new Set(places.map((place) => forecast.at('module', place)))];
  const lines = [...byN]
    .sort(([left], [right]) => left - right)
    .map(([n, group]) => ({
      n,
      ratio: forecast.at('ratio', group[0]),
      latency: group.reduce((sum, place) => sum + forecast.at('latency_us', place), 0),
      id: forecast.id(
        group.reduce((largest, place) =>
          forecast.at('share', place) > forecast.at('share', largest) ? place : largest,
        ),
      ),
      of: new Map(group.map((place) => [forecast.at('module', place), place])),
    }));
  const base = lines.find(({ n }) => n === main.baseline);
  const points = base
    ? lines
        .filter(({ n }) => n >= main.baseline)
        .map((line) => ({ ...line, ratio: line.ratio / base.ratio }))
    : lines;
  const rows = lines.map((line) => [
    String(line.n),
    provenanceLink(line.id, latencyText(line.latency)),
    provenanceLink(line.id, line.ratio.toFixed(3)),
    ...modules.map((module) => {
      const place = line.of.get(module);
      return place === undefined
        ? '-'
        : provenanceLink(forecast.id(place), percent(forecast.at('share', place)));
    }),
  ]);
  return make(
    'div',
    null,
    plotElement({
      points,
      epsilon: main.epsilon,
      baseline: base ? main.baseline : 1,
      boundary: main.unbounded || main.fits === false ? {} : { n: main.n_max, text: amount(main), low: main.low, high: main.high },
    }),
    foldedPart(
      'T(N) as a table, with each module’s share',
      grid(['N', 'T(N), µs', 'T(N)/T(1)', ...modules], rows),
    ),
  );
}

function scheduleParts(schedules, about, epsilon) {
  const key = Object.entries({ ...about, epsilon });
  const places = schedules.where(
    Object.fromEntries(key.filter(([name]) => schedules.key.includes(name))),
  );
  return places.length
    ? make(
        'div',
        null,
        make('h3', null, 'Options of engines'),
        places.map((place) => [
          make(
            'p',
            null,
            provenanceLink(schedules.id(place), schedules.at('engine', place)),
            ', for all batch sizes that fit at this context, relative to T(1)',
          ),
          make(
            'pre',
            { tabindex: '0' },
            schedules.at('option', place) ?? schedules.at('refusal', place) ?? 'none',
          ),
          make(
            'p',
            { class: 'note' },
            'Command: ',
            make('code', { class: 'command' }, scheduleCommand(schedules, place)),
          ),
        ]),
      )
    : null;
}

// The command that prints an engine's option. A release is written with `==`. `--graphs none` is
// explicit, since the default is the engine's own graphs.
function scheduleCommand(schedules, place) {
  const text = (name) => {
    const value = String(schedules.at(name, place));
    return ['attention', 'moe', 'graphs'].includes(name) ? value.replace(' ', '==') : value;
  };
  const options = schedules.key
    .filter((name) => !['deployment', 'engine', ...Object.keys(FORMATS)].includes(name))
    .filter((name) => ![null, FIELDS[name]?.quiet].includes(schedules.at(name, place)))
    .map((name) => `--${name.replaceAll('_', '-')} ${shellQuoted(text(name))}`);
  const graphs = `--graphs ${schedules.at('graphs', place) === null ? 'none' : shellQuoted(text('graphs'))}`;
  const extra = schedules.at('asked', place);
  return ['nearfree schedule', schedules.at('engine', place), ...options, graphs, '--worth 0', extra]
    .filter(Boolean)
    .join(' ');
}
