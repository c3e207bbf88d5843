// Evidence from the log: events with their raw samples, the run, and entries of the config.

async function eventParts(ids) {
  const parts = [];
  for (const [segment, segmentIds] of Map.groupBy(ids, (id) => parse(id).segment)) {
    const lines = segmentIds.map((id) => parse(id).line);
    const raw = await visits(segment, lines);
    const list = raw
      ? samples(segment, raw)
      : itemList(segmentIds.map((id) => make('li', null, provenanceLink(id, `line ${parse(id).line}`))));
    parts.push(
      part(
        raw
          ? `From ${segmentIds.length} visits`
          : `From ${segmentIds.length} event${segmentIds.length > 1 ? 's' : ''}`,
        make('p', { class: 'note' }, 'segment ', make('bdi', null, segment)),
        list,
      ),
    );
  }
  return parts;
}

// A table of raw samples: one line per visit, in the order of the rounds.
function samples(segment, raw) {
  const rows = raw.map((visit) => [
    provenanceLink(`${segment}#${visit.line}`, valueText(visit.line)),
    valueText(visit.round),
    valueText(visit.n),
    visit.wall_us
      .map((value, index) => `${valueText(value)}${visit.dirty[index] ? ' (disturbed)' : ''}`)
      .join(', '),
    visit.process_us.map(valueText).join(', '),
  ]);
  return grid(['line', 'round', 'N', 'wall, µs', 'process, µs'], rows, 'samples');
}

// Whether a take of this page has this line.
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
          'Timed visit',
          fields(
            Object.entries(raw[0])
              .filter(([, value]) => value !== null)
              .map(([name, value]) => [
                knownName(name) || nameAndUnit(name).words,
                `${valueText(value)}${nameAndUnit(name).unit ? ` ${nameAndUnit(name).unit}` : ''}`,
              ]),
          ),
        )
      : make(
          'p',
          { class: 'note' },
          'This page holds only raw samples of timed visits; this event is in the log.',
        ),
    part('Print it', make('code', { class: 'command' }, `nearfree log show ${shellQuoted(id)}`)),
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
      .map(([name, value]) => `${name} ${valueText(value)} MHz`)
      .join(', ');
  const pairs = [
    ['command', make('code', null, run.command)],
    ['at', run.time],
    ['outcome', `${run.outcome}, ${valueText(run.wall_s)} s`],
    ['commit', run.commit ? `${run.commit}${run.dirty ? ' with local changes' : ''}` : 'none'],
    ['code', run.code_digest],
    ['host', run.host_label],
    ['device', run.device],
    ['driver', run.driver],
    ['clocks', clocks],
    ['power cap', run.power_cap_w && `${valueText(run.power_cap_w)} W`],
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
          (segment) =>
            `attempt ${segment.attempt}: ${segment.events} events, SHA-256 ${segment.sha256.slice(0, 12)}`,
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
    pairs.length ? part('Sources of its values', fields(pairs)) : null,
  ].filter(Boolean);
}
