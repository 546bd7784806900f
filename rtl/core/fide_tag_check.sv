// SPDX-License-Identifier: Apache-2.0
// Frames with the verdict on their tags, in their order. A frame is kept in a lane while it is hashed.
// Its words leave as soon as the frame before it has left, but for the last one, which waits for the
// verdict: whoever takes the words acts on them only with the last one. The stream is never held up: a
// frame that finds no lane is dropped and counted.
//
// A lane hashes a word of the stream in 8 / Words clocks. For a word each clock without a pause there
// have to be 8 / Words lanes and, for frames of two words, two more. The verdict on a frame of n words
// that arrives without a pause is known n · (8 / Words - 1) + 5 clocks after its last word.
module fide_tag_check
#(
  parameter int unsigned Lanes = 4,
  parameter int unsigned Words = 1,   // see fide_siphash
  // Words of the longest frame, and one: what is longer is cut off behind the word that shows it.
  parameter int unsigned Beats = (fide_wire_pkg::FRAME_MAX + 64) / 64
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [127:0] key_i,

  input  logic         s_axis_tvalid_i,
  input  logic [511:0] s_axis_tdata_i,
  input  logic [63:0]  s_axis_tkeep_i,
  input  logic         s_axis_tlast_i,
  input  logic         s_axis_tuser_i,   // with tlast: the MAC found the frame bad

  output logic         m_axis_tvalid_o,
  output logic [511:0] m_axis_tdata_o,
  output logic [63:0]  m_axis_tkeep_o,
  output logic         m_axis_tlast_o,
  output logic         m_axis_tuser_o,
  output logic         tag_bad_o,        // with tlast

  output logic         room_o,           // a frame that begins in the next clock finds a lane
  output logic         drop_o,           // one did not
  output logic         busy_o            // a frame is being checked
);

  localparam int unsigned BeatW = $clog2(Beats + 1);
  localparam int unsigned LaneW = $clog2(Lanes);

  if (Lanes < 2 || (1 << LaneW) != Lanes) begin : gen_bad_lanes
    $fatal(1, "fide_tag_check: Lanes is a power of two, at least 2");
  end

  logic [Lanes-1:0] busy_q, whole_q, mac_bad_q;
  logic [LaneW-1:0] in_q, out_q;     // the lane of the frame that arrives, and of the one that leaves next
  logic first_q, skip_q, take, free;
  logic [BeatW-1:0] in_beat_q, out_beat_q;
  logic [Lanes-1:0] hash_valid, hashing, tag_bad, out_last;
  logic [Lanes-1:0][511:0] out_data;
  logic [Lanes-1:0][63:0] out_keep;

  assign free   = !busy_q[in_q];
  assign take   = s_axis_tvalid_i && (first_q ? free : !skip_q);
  assign drop_o = s_axis_tvalid_i && first_q && !free;
  assign room_o = !(busy_q[in_q] && first_q) && !(!first_q && busy_q[in_q + 1'b1]);

  logic fits, cut;
  assign fits = (first_q ? '0 : in_beat_q) < BeatW'(Beats);
  assign cut  = (first_q ? '0 : in_beat_q) == BeatW'(Beats - 1);

  logic [Lanes-1:0][BeatW-1:0] stored;   // words of its frame that a lane holds
  logic verdict, leaves, leaves_last;
  assign verdict     = whole_q[out_q] && hashing[out_q] && hash_valid[out_q];
  assign leaves      = busy_q[out_q] && out_beat_q < stored[out_q] && (!out_last[out_q] || verdict);
  assign leaves_last = leaves && out_last[out_q];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      busy_q <= '0;
      whole_q <= '0;
      in_q <= '0;
      out_q <= '0;
      first_q <= 1'b1;
      out_beat_q <= '0;
    end else begin
      if (s_axis_tvalid_i) first_q <= s_axis_tlast_i;
      if (take && first_q) busy_q[in_q] <= 1'b1;
      if (take && s_axis_tlast_i) begin
        whole_q[in_q] <= 1'b1;
        in_q <= in_q + 1'b1;
      end
      if (leaves) out_beat_q <= leaves_last ? '0 : out_beat_q + 1'b1;
      if (leaves_last) begin
        busy_q[out_q] <= 1'b0;
        whole_q[out_q] <= 1'b0;
        out_q <= out_q + 1'b1;
      end
    end
    if (s_axis_tvalid_i) begin
      if (first_q) skip_q <= !free;
      in_beat_q <= first_q ? BeatW'(1) : fits ? in_beat_q + 1'b1 : in_beat_q;
    end
    if (take && s_axis_tlast_i) mac_bad_q[in_q] <= s_axis_tuser_i;
  end

`ifdef FIDE_TAG_FV
`include "fide_tag_check_fv.svh"
`endif

  for (genvar i = 0; i < int'(Lanes); i++) begin : gen_lane
    // {last, keep, data}
    logic [576:0] mem [Beats];
    logic [576:0] head;
    logic [BeatW-1:0] rd_q, wr_q;
    logic [63:0] claimed_q, tag;
    logic mine, ready, pop;
    logic [6:0] bytes;
    assign mine = take && in_q == LaneW'(i);
    always_ff @(posedge clk_i) begin
      if (mine && fits) mem[first_q ? '0 : in_beat_q] <= {s_axis_tlast_i || cut, s_axis_tkeep_i, s_axis_tdata_i};
    end
    assign {out_last[i], out_keep[i], out_data[i]} = mem[out_beat_q];

    assign head = mem[rd_q];
    always_comb begin
      bytes = '0;
      for (int unsigned b = 0; b < 64; b++) bytes = bytes + {6'b0, head[512 + b]};
    end
    assign pop = rd_q != wr_q && ready;
    fide_siphash #(.Words(Words)) u_hash (
      .clk_i, .rst_ni, .key_i, .valid_i(rd_q != wr_q), .ready_o(ready), .data_i(head[511:0]), .words_i(bytes[6:3]),
      .first_i(rd_q == '0), .last_i(head[576]), .valid_o(hash_valid[i]), .tag_o(tag)
    );
    always_ff @(posedge clk_i) begin
      if (!rst_ni) begin
        rd_q <= '0;
        wr_q <= '0;
      end else if (leaves_last && out_q == LaneW'(i)) begin
        rd_q <= '0;
        wr_q <= '0;
      end else begin
        if (mine && fits) wr_q <= wr_q + 1'b1;
        if (pop) rd_q <= rd_q + 1'b1;
      end
      if (pop && rd_q == '0) claimed_q <= head[8*fide_wire_pkg::TAG_AT +: 64];
    end
    assign stored[i]  = wr_q;
    assign hashing[i] = rd_q != '0;   // the hash is of this frame, not of the one before it
    assign tag_bad[i] = claimed_q != tag;
    logic unused;
    assign unused = ^bytes[2:0];
`ifdef FIDE_TAG_FV
    assign fv_tags[i] = tag;
    assign fv_pops[i] = pop;
    assign fv_first[i] = rd_q == '0;
    assign fv_last[i] = head[576];
    assign fv_head[i] = 80'(fv_of('0, head[511:0]));
    assign fv_hash_words[i] = bytes[6:3];
`endif
  end

  assign busy_o          = busy_q != '0;
  assign m_axis_tvalid_o = leaves;
  assign m_axis_tdata_o  = out_data[out_q];
  assign m_axis_tkeep_o  = out_keep[out_q];
  assign m_axis_tlast_o  = out_last[out_q];
  assign m_axis_tuser_o  = mac_bad_q[out_q];
  assign tag_bad_o       = tag_bad[out_q];

`include "fide_assert.svh"
  `FIDE_ASSERT(InOrder_A, !leaves || out_q == in_q || busy_q[out_q])
  `FIDE_ASSERT(WholeIsBusy_A, (whole_q & ~busy_q) == '0)

endmodule
