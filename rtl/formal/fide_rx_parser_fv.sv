// SPDX-License-Identifier: Apache-2.0
// The parser takes no frame that the wire's decoders refuse, and what it reports is what the frame says.
// The frame is spelt out here once more, byte by byte, from wire/src/frame: within the bound every frame
// of up to three words, whatever came before it.
`ifndef FV_REQUEST
`define FV_REQUEST 0
`endif
module fide_rx_parser_fv #(
  parameter bit IsRequest = `FV_REQUEST
) (
  input logic         clk_i,
  input logic         rst_ni,
  input logic [511:0] base_i,
  input logic [1:0][15:0] ids_i,
  input logic [15:0]  ids_valid_i,
  input logic [3:0]   me_i,
  input logic         valid_i,
  input logic [511:0] data_i,
  input logic [6:0]   bytes_i,      // 1 to 64
  input logic         last_i,
  input logic         user_i,
  input logic         tag_bad_i,
  input logic         full_i
);
  logic [63:0] keep;
  assign keep = ~({64{1'b1}} << bytes_i);
  logic ev_valid, drop_valid;
  fide_lowi_pkg::ev_t ev;
  fide_lowi_pkg::drop_e drop;
  logic store_valid;
  logic [3:0] store_addr;
  logic [511:0] store_data;
  fide_rx_parser #(.Members(2), .Path(1), .MaxBeats(4), .Buffers(4), .StoreBatch(1'b0), .IsRequest(IsRequest)) u_parser (
    .clk_i, .rst_ni, .clear_i(1'b0), .base_i, .ids_i, .ids_valid_i, .me_i,
    .s_axis_tvalid_i(valid_i), .s_axis_tdata_i(data_i), .s_axis_tkeep_i(keep), .s_axis_tlast_i(last_i), .s_axis_tuser_i(user_i),
    .tag_bad_i, .store_valid_o(store_valid), .store_addr_o(store_addr), .store_data_o(store_data),
    .free_valid_i(2'b00), .free_buffer_i('0), .ev_valid_o(ev_valid), .ev_o(ev), .ev_full_i(full_i),
    .drop_valid_o(drop_valid), .drop_o(drop)
  );

  // The last three words, and how long the frame is; ended_q: it ended a clock ago.
  logic past_q = 1'b0;
  logic [3:0][511:0] frame_q;
  logic [15:0] len_q;
  logic [4:0] words_q = '0;
  logic ended_q = 1'b0, user_q, tag_bad_q;
  logic [511:0] base_q;
  logic [1:0][15:0] ids_q;
  logic [15:0] ids_valid_q;
  logic [3:0] me_q;
  always_ff @(posedge clk_i) begin
    past_q <= 1'b1;
    ended_q <= rst_ni && valid_i && last_i;
    if (!rst_ni) words_q <= '0;
    else if (valid_i) begin
      if (words_q < 5'd4) frame_q[words_q[1:0]] <= data_i;
      len_q <= (words_q == '0) ? 16'(bytes_i) : len_q + 16'(bytes_i);
      words_q <= last_i ? '0 : words_q + 1'b1;
      user_q <= user_i;
      tag_bad_q <= tag_bad_i;
    end
    base_q <= base_i; ids_q <= ids_i; ids_valid_q <= ids_valid_i; me_q <= me_i;
  end

`define B(at_) frame_q[(at_) / 64][8 * ((at_) % 64) +: 8]
`define N16(at_) {`B(at_), `B((at_) + 1)}
`define N32(at_) {`N16(at_), `N16((at_) + 2)}
`define N64(at_) {`N32(at_), `N32((at_) + 4)}
`define BASE(at_) base_q[8 * (at_) +: 8]

  logic [15:0] from;
  logic known_0, known_1, is_round, is_forward, is_signal;
  logic [31:0] batch_len, value_len;
  logic [31:0] padded_len;
  assign from = `N16(52);
  assign known_0 = ids_valid_q[0] && ids_q[0] == from;
  assign known_1 = ids_valid_q[1] && ids_q[1] == from;
  assign is_round   = `B(16) == 8'd10 && `B(55) == 8'd1;
  assign is_forward = `B(16) == 8'd8 && `B(55) == 8'd2;
  assign is_signal  = `B(16) == 8'd8 && (`B(55) == 8'd3 || `B(55) == 8'd4);
  assign batch_len  = `N32(84);
  assign value_len  = `N32(92);
  assign padded_len = (value_len + 32'd7) & ~32'd7;

  logic padded;
  always_comb begin
    padded = 1'b1;
    for (int unsigned i = 0; i < 88; i++) begin
      if (32'(i) >= value_len && 32'(i) < padded_len && `B(104 + i) != '0) padded = 1'b0;
    end
  end

  always_comb begin
    assume (rst_ni == past_q);
    assume (bytes_i >= 7'd1 && bytes_i <= 7'd64);
    if (!last_i) assume (bytes_i == 7'd64);
    if (words_q >= 5'd2) assume (last_i);     // the bound
    if (past_q) begin
      // Settings stand while a frame is under way; the verdict on the tag comes with the last word.
      assume (base_i == base_q && ids_i == ids_q && ids_valid_i == ids_valid_q && me_i == me_q);
    end
    if (past_q && rst_ni) begin
      one_verdict: assert ((ev_valid || drop_valid) == ended_q && !(ev_valid && drop_valid));
      no_room_is_no_event: assert (!(ev_valid && full_i));
      if (ev_valid) begin
        magic_version: assert (`N16(0) == 16'hf1de && `B(2) >> 4 == 8'd2);
        cluster_key: assert ({`B(4), `B(5), `B(6), `B(7)} == {`BASE(4), `BASE(5), `BASE(6), `BASE(7)} && `B(3) << 4 == `BASE(3) << 4);
        tag_mac: assert (!tag_bad_q && !user_q);
        channel_engine: assert (`B(17) == 8'd2 && `B(54) == 8'd3);
        group_generation: assert (`N32(48) == {`BASE(48), `BASE(49), `BASE(50), `BASE(51)} && `N64(56) ==
          {`BASE(56), `BASE(57), `BASE(58), `BASE(59), `BASE(60), `BASE(61), `BASE(62), `BASE(63)});
        of_a_member: assert ((known_0 || known_1) && ev.rank == (known_0 ? 4'd0 : 4'd1));
        not_of_us: assert (IsRequest || ev.rank != me_q);
        kind: assert (IsRequest ? is_forward : is_round || is_signal);
        if (is_signal) begin
          signal_len: assert (len_q == 16'd64);
          signal_kind: assert (ev.kind == (`B(55) == 8'd3 ? fide_lowi_pkg::EvExit : fide_lowi_pkg::EvReady));
        end else begin
          its_path: assert (IsRequest || `B(3) >> 4 == 8'd1);
          round_len: assert (len_q >= 16'd88 && 32'(len_q) == 32'd88 + batch_len && `N16(82) == '0);
          round_says: assert (ev.kind == fide_lowi_pkg::EvCopy && ev.round == `N64(64) && ev.inst == `N64(72) && ev.sent_ns == `N64(24));
          entries: assert (`N16(80) <= 16'd1 && ev.has_batch == (`N16(80) == 16'd1) && 16'(ev.len) == len_q - 16'd64);
          if (`N16(80) == '0) begin
            empty: assert (batch_len == '0 && !IsRequest);
          end else begin
            entry_len: assert (batch_len == 32'd16 + padded_len && value_len <= 32'd1472);
            entry_kind: assert (`B(90) <= 8'd3 && `B(91) == '0 && `N64(96) != '0 && ev.barrier == (`B(90) != '0));
            // Behind the value only zeros, to the end of the batch.
            padding: assert (padded);
          end
        end
      end
      request_taken: cover (IsRequest && ev_valid);
      round_taken: cover (!IsRequest && ev_valid && is_round && `N16(80) == 16'd1);
      exit_taken: cover (!IsRequest && ev_valid && is_signal);
    end
  end
endmodule
