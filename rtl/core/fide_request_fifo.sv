// SPDX-License-Identifier: Apache-2.0
// Requests that wait to be proposed, each in a slot of its own. A request is a Forward frame; its words
// behind the first are laid out as those of a round, so a proposal is these words with the round's number
// written into the first one. A slot is free when its decision is out.
module fide_request_fifo
#(
  parameter int unsigned Depth    = 8,     // a power of two
  parameter int unsigned MaxBeats = 16,
  localparam int unsigned IndexW  = $clog2(Depth),
  localparam int unsigned BeatW   = $clog2(MaxBeats + 1) + 1,
  localparam int unsigned AddrW   = $clog2(Depth * MaxBeats)
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic             clear_i,

  // Words of a request that is arriving, and its end.
  input  logic             s_valid_i,
  input  logic             s_first_i,
  input  logic [511:0]     s_data_i,
  input  logic             commit_i,
  input  logic [fide_lowi_pkg::LenW-1:0] commit_len_i,
  input  logic             commit_barrier_i,
  output logic             full_o,         // no slot for the request that is arriving

  // The next one to be proposed.
  output logic             req_valid_o,
  output logic             req_barrier_o,
  output logic [fide_lowi_pkg::LenW-1:0] req_len_o,
  input  logic [BeatW-1:0] req_beat_i,
  output logic [511:0]     req_data_o,     // a clock after its beat
  input  logic             req_pop_i,

  // The next one that is decided.
  output logic [fide_lowi_pkg::LenW-1:0] dec_len_o,
  input  logic [BeatW-1:0] dec_beat_i,
  output logic [511:0]     dec_data_o,
  input  logic             dec_pop_i
);

  if (Depth < 2 || (1 << IndexW) != Depth) begin : gen_bad_depth
    $fatal(1, "fide_request_fifo: Depth is a power of two, at least 2");
  end

  logic [IndexW:0] wr_q, prop_q, dec_q;
  logic [BeatW-1:0] beat_q;
  logic [Depth-1:0][fide_lowi_pkg::LenW-1:0] len_q;
  logic [Depth-1:0] barrier_q;

  // Whether there is a slot is asked once, with a request's first word and behind the one that is
  // committed in that clock: one that becomes free in the middle of a request would hold half of it.
  logic full, fits_q;
  assign full          = (wr_q + (IndexW + 1)'(commit_i && fits_q) - dec_q) == (IndexW + 1)'(Depth);
  assign full_o        = !fits_q;
  assign req_valid_o   = wr_q != prop_q;
  assign req_len_o     = len_q[prop_q[IndexW-1:0]];
  assign req_barrier_o = barrier_q[prop_q[IndexW-1:0]];
  assign dec_len_o     = len_q[dec_q[IndexW-1:0]];

  function automatic logic [AddrW-1:0] addr(input logic [IndexW-1:0] index, input logic [BeatW-1:0] beat);
    addr = AddrW'(index) * AddrW'(MaxBeats) + AddrW'(beat);
  endfunction

  logic we;
  assign we = s_valid_i && !s_first_i && fits_q && beat_q < BeatW'(MaxBeats);

  fide_ram #(.Width(512), .Depth(Depth * MaxBeats)) u_prop_ram (
    .clk_i, .we_i(we), .waddr_i(addr(wr_q[IndexW-1:0], beat_q)), .wdata_i(s_data_i),
    .raddr_i(addr(prop_q[IndexW-1:0], req_beat_i)), .rdata_o(req_data_o)
  );
  fide_ram #(.Width(512), .Depth(Depth * MaxBeats)) u_dec_ram (
    .clk_i, .we_i(we), .waddr_i(addr(wr_q[IndexW-1:0], beat_q)), .wdata_i(s_data_i),
    .raddr_i(addr(dec_q[IndexW-1:0], dec_beat_i)), .rdata_o(dec_data_o)
  );

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      wr_q <= '0;
      prop_q <= '0;
      dec_q <= '0;
      fits_q <= 1'b0;
    end else begin
      if (s_valid_i && s_first_i) fits_q <= !full;
      if (commit_i && fits_q) wr_q <= wr_q + 1'b1;
      if (req_pop_i) prop_q <= prop_q + 1'b1;
      if (dec_pop_i) dec_q <= dec_q + 1'b1;
    end
    if (!rst_ni) beat_q <= '0;
    else if (s_valid_i) beat_q <= s_first_i ? '0 : (beat_q == BeatW'(MaxBeats)) ? beat_q : beat_q + 1'b1;
    if (commit_i && fits_q) begin
      len_q[wr_q[IndexW-1:0]] <= commit_len_i;
      barrier_q[wr_q[IndexW-1:0]] <= commit_barrier_i;
    end
  end

`include "fide_assert.svh"
  `FIDE_ASSERT(ProposedIsThere_A, !req_pop_i || req_valid_o)
  `FIDE_ASSERT(DecidedWasProposed_A, !dec_pop_i || dec_q != prop_q)
  `FIDE_ASSERT(Order_A, (wr_q - dec_q) <= (IndexW + 1)'(Depth) && (prop_q - dec_q) <= (wr_q - dec_q))

endmodule
