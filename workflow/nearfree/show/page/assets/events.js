// What the log holds of a number: events with their raw samples, the run, the config.

async function eventParts(ids) {
  const parts = [];
  for (const [segment, some] of Map.groupBy(ids, (id) => parse(id).segment)) {
    const lines = some.map((id) => parse(id).line);
    const raw = await visits(segment, lines);
    const list = raw
      ? samples(segment, raw)
      : listed(some.map((id) => make('li', null, opens(id, `line ${parse(id).line}`))));
    parts.push(
      part(
        raw
          ? `From ${some.length} visits`
          : `From ${some.length} event${some.length > 1 ? 's' : ''}`,
        make('p', { class: 'note' }, 'segment ', make('bdi', null, segment)),
        list,
      ),
    );
  }
  return parts;
}

// Raw samples: a line a visit, in the order of the rounds.
function samples(segment, raw) {
  const rows = raw.map((each) => [
    opens(`${segment}#${each.line}`, shown(each.line)),
    shown(each.round),
    shown(each.n),
    each.wall_us
      .map((value, at) => `${shown(value)}${each.dirty[at] ? ' (disturbed)' : ''}`)
      .join(', '),
    each.process_us.map(shown).join(', '),
  ]);
  return grid(['line', 'round', 'N', 'wall, µs', 'process, µs'], rows, 'samples');
}

// Whether a take of this page has such a line.
async function holds(segment, line) {
  const runs = await read('runs');
  const take = takeOf(segment);
  if (!Object.hasOwn(runs, take)) return false;
  const part = runs[take].segments.find(({ attempt }) => `${take}.${attempt}` === segment);
  return part !== undefined && Number.isInteger(line) && line >= 1 && line <= part.events;
}

async function eventBody(id) {
  const { segment, line } = parse(id);
  if (!(await holds(segment, line))) return heading('Not in this page', id);
  const raw = await visits(segment, [line]);
  return [
    ...heading(raw ? `Raw samples at N = ${raw[0].n}, round ${raw[0].round}` : `Event ${line}`, id),
    make(
      'p',
      { class: 'note' },
      'line ',
      String(line),
      ' of ',
      make(
        'a',
        { href: `../events/${segment.split('/').map(encodeURIComponent).join('/')}.jsonl` },
        make('bdi', null, `${segment}.jsonl`),
      ),
      ' (in the results folder)',
    ),
    raw
      ? part(
          'What was timed',
          fields(
            Object.entries(raw[0])
              .filter(([, value]) => value !== null)
              .map(([name, value]) => [
                inWords(name) || named(name).words,
                `${shown(value)}${named(name).unit ? ` ${named(name).unit}` : ''}`,
              ]),
          ),
        )
      : make(
          'p',
          { class: 'note' },
          'This page holds the raw samples of timed visits; the log has this event.',
        ),
    part('Print it', make('code', { class: 'command' }, `nearfree log show ${quoted(id)}`)),
    await runPart(takeOf(segment)),
  ].filter(Boolean);
}

async function runPart(take) {
  const run = (await read('runs'))[take];
  const versions = Object.entries(run.versions)
    .map(([name, version]) => `${name} ${version}`)
    .join(', ');
  const clocks =
    run.clocks_mhz &&
    Object.entries(run.clocks_mhz)
      .map(([name, value]) => `${name} ${shown(value)} MHz`)
      .join(', ');
  const pairs = [
    ['command', make('code', null, run.command)],
    ['at', run.time],
    ['outcome', `${run.outcome}, ${shown(run.wall_s)} s`],
    ['commit', run.commit ? `${run.commit}${run.dirty ? ' with local changes' : ''}` : 'none'],
    ['code', run.code_digest],
    ['host', run.host_label],
    ['device', run.device],
    ['driver', run.driver],
    ['clocks', clocks],
    ['power cap', run.power_cap_w && `${shown(run.power_cap_w)} W`],
    ['batch job', run.jobs.join('; ')],
    ['Python', run.python],
    ['versions', versions],
    ['environment', run.environment_sha256],
    ['lock', run.lock_sha256],
    ['plan', run.plan_digest],
    [
      'segments',
      run.segments
        .map(
          (each) =>
            `attempt ${each.attempt}: ${each.events} events, SHA-256 ${each.sha256.slice(0, 12)}`,
        )
        .join('; '),
    ],
  ];
  return part(
    'The run',
    make(
      'p',
      { class: 'note' },
      make(
        'a',
        { href: `../events/${take.split('/').map(encodeURIComponent).join('/')}.seal.json` },
        `seal of ${take}`,
      ),
      ' (in the results folder)',
    ),
    fields(pairs.filter(([, value]) => value)),
  );
}

async function configBody(id) {
  const config = await read('config');
  if (!Object.hasOwn(config, id)) return heading('Not in this page', id);
  const pairs = Object.entries(config[id]).map(([name, source]) => [
    name.replaceAll('_', ' '),
    source,
  ]);
  return [
    ...heading('An entry of the config', id),
    pairs.length ? part('Where its values come from', fields(pairs)) : null,
  ].filter(Boolean);
}
